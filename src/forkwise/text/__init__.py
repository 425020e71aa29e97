"""Pure functions of bytes and text: diffs, three-way merges, clean text from terminal output."""
