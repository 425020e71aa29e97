"""The faces of forkwise: what shows and asks. Nothing is decided on this floor."""
