"""Build steps of the documentation site that ``make docs`` adds to mkdocs."""
