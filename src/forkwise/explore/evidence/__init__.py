"""Evidence on attempts besides their own scores: summaries, and the tests of other attempts."""
