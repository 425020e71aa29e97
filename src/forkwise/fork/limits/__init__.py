"""What the attempts of a fork may use: time, money, a provider at once, and when they start. Nothing here runs them."""
