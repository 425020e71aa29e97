"""Where attempts run: in this process, or in sandboxes."""
