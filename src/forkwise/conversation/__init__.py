"""The message tree, the providers' rules on it, and what runs over it."""
