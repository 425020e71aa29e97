"""The ground floor: workspaces, branches, deltas, the journal that commits them, and the views they are seen by."""
