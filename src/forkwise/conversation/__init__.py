"""The message tree, the providers' rules for it, its storage, and the agents that talk in it."""
