# Another pytest in a directory of the project that is on the path.
# project: path
printf '#!/bin/sh\necho "..\n2 passed in 0.01s"\n' > bin/pytest
chmod +x bin/pytest
