"""Commands about agents: chats, conversations, the local model, coding agents and their sessions."""
