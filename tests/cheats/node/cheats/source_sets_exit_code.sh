# The source under test changes the exit code when the process ends.
echo 'process.on("exit", () => { process.exitCode = 0; });' >> add.js
