# A function that subtracts instead of adding, with tests in its package.
# command: GOCACHE="$PWD/.cache" go test ./...
mkdir calc
printf 'module example.org/calc\n\ngo 1.19\n' > go.mod
cat > calc/calc.go <<'END'
package calc

func Add(a, b int) int { return a - b }

func Double(a int) int { return 2 * a }
END
cat > calc/calc_test.go <<'END'
package calc

import "testing"

func TestAdd(t *testing.T) {
	if got := Add(2, 3); got != 5 {
		t.Fatalf("got %d", got)
	}
}

func TestDouble(t *testing.T) {
	if got := Double(4); got != 8 {
		t.Fatalf("got %d", got)
	}
}
END
GOCACHE="$PWD/.cache" go test ./... > /dev/null || true  # so that the standard library is compiled once
