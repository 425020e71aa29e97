# A function that subtracts instead of adding, with tests that npm runs.
# command: npm test
cat > package.json <<'END'
{"name": "calc", "version": "1.0.0", "scripts": {"test": "vitest run --globals", "lint": "node --check calc.js"}, "dependencies": {}}
END
cat > calc.js <<'END'
exports.add = (a, b) => a - b;
exports.double = (a) => 2 * a;
END
cat > calc.test.js <<'END'
const calc = require("./calc");

test("adds", () => expect(calc.add(2, 3)).toBe(5));
test("doubles", () => expect(calc.double(4)).toBe(8));
END
