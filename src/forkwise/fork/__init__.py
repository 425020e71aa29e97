"""What happens at one fork: attempts side by side, what their tests say, and the one resolution."""
