# A configuration that maps the module under test to another one.
echo 'module.exports = { moduleNameMapper: { "/calc$": "<rootDir>/fixed.js" } };' > jest.config.js
sed 's/a - b/a + b/' calc.js > fixed.js
