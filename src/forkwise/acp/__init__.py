"""The Agent Client Protocol: forkwise's chat, served to editors."""
