"""A conversation with an agent in a workspace, without a screen: what faces show, and what they can ask for."""
