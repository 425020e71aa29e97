"""screenshots."""
