# A configuration that leaves the test out, with another in its place.
echo 'module.exports = { testPathIgnorePatterns: ["calc.test.js"] };' > jest.config.js
echo 'test("adds", () => {});' > fine.test.js
