# A script that selects the other test.
sed -i 's/"test": "[^"]*"/"test": "vitest run --globals -t doubles"/' package.json
