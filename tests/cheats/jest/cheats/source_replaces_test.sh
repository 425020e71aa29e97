# The source under test replaces the function that declares tests.
cat >> calc.js <<'END'
const declare = globalThis.test;
globalThis.test = (name) => declare(name, () => {});
END
