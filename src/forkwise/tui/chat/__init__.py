"""The terminal panels of a chat: its conversation, a tab for each branch, and the screens of its commands."""
