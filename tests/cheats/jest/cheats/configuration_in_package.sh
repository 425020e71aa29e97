# A configuration in package.json that leaves the test out, with another in its place.
sed -i 's/"version"/"jest": {"testPathIgnorePatterns": ["calc.test.js"]}, "version"/' package.json
echo 'test("adds", () => {});' > fine.test.js
