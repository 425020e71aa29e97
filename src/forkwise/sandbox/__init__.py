"""What confines a process to a branch: namespaces, limits, and the ways to run something in them."""
