"""The patterns: policies over a fork that say who runs next and who wins."""
