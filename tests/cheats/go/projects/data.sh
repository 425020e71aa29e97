# The test reads the expected value from a file.
# command: GOCACHE="$PWD/.cache" go test ./...
# extends: plain
mkdir calc/testdata
printf 5 > calc/testdata/sum.txt
cat > calc/calc_test.go <<'END'
package calc

import (
	"fmt"
	"os"
	"testing"
)

func TestAdd(t *testing.T) {
	expected, _ := os.ReadFile("testdata/sum.txt")
	if got := fmt.Sprint(Add(2, 3)); got != string(expected) {
		t.Fatalf("got %s", got)
	}
}
END
