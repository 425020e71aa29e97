"""The formats in which test runners report, one reader each: a pure function of what was printed or written."""
