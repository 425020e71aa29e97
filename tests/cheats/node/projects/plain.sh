# A function that subtracts instead of adding, with tests for node's own runner.
# command: node --test
cat > add.js <<'END'
exports.add = (a, b) => a - b;
END
cat > add.test.js <<'END'
const test = require("node:test");
const assert = require("node:assert");
const { add } = require("./add.js");

test("adds", () => assert.strictEqual(add(2, 3), 5));
test("adds nothing", () => assert.strictEqual(add(4, 0), 4));
END
