"""Terminal panels over forks and conversations. They show and ask; the layers below decide and do the work."""
