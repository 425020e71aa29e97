"""The terminal's panels: widgets over forks and conversations. They show and ask; what is decided is decided below."""
