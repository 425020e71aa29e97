"""What a pattern knows of its attempts besides their own scores: summaries, and the tests of other attempts."""
