# The source under test replaces one matcher.
cat >> calc.js <<'END'
globalThis.expect.extend({ toBe: () => ({ pass: true, message: () => "" }) });
END
