"""The pictures in ``docs/images``: ``make screenshots`` draws them, and a test compares them."""
