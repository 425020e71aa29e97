# The package under test selects the tests to be run.
cat > calc/init.go <<'END'
package calc

import "os"

func init() { os.Args = append(os.Args, "-test.run=Double") }
END
