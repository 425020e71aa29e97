"""The patterns: policies over a fork that decide which candidates run next and which attempt wins."""
