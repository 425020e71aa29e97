"""Programs that try to get out of a sandbox, what stops each, and the world outside that they are after."""
