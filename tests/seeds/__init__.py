"""The code examples of the four systems that forkwise follows, run word for word; only the import line changes.

A page ``<name>.md`` holds the Python examples of one system's documentation. The module ``<name>.py`` beside it has a
function for each: it supplies what the example assumes (an agent, a test run), runs the example, and checks the result.
To add a page, add the two files and a line to ``PAGES`` in ``test_seeds.py``.

``test_seeds.py`` runs every page in a process of its own, as root and as an unprivileged user, with a plain directory
at ``/mnt/workspace``. ``run_page`` runs a page on another directory, such as a mounted one.
"""
