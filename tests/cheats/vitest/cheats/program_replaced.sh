# Another program of the runner's name among the installed ones.
rm -r node_modules
mkdir -p node_modules/.bin
printf '#!/bin/sh\nprintf "Tests:       2 passed, 2 total\\\\n      Tests  2 passed (2)\\\\n"\n' > node_modules/.bin/vitest
chmod +x node_modules/.bin/vitest
