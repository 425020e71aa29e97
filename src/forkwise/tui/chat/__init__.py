"""Chat: the terminal of a session: its conversation, its branches as tabs, and the screens that its commands open."""
