"""The network of a sandbox: namespaces that several sandboxes share, and what connects them."""
