# Fixes the function, and adds a test file.
sed -i 's/a - b/a + b/' calc/calc.go
cat > calc/more_test.go <<'END'
package calc

import "testing"

func TestNegative(t *testing.T) {
	if Add(-1, 1) != 0 {
		t.Fail()
	}
}
END
