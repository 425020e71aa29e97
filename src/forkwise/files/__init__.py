"""Files: workspaces, branches and deltas, the journal that commits them, and the views that show them."""
