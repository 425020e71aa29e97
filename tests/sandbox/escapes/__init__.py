"""Programs that try to escape from a sandbox, what stops each, and the world outside that they aim at."""
