"""Preview: a listener on the host through which a browser sees the servers inside branches."""
