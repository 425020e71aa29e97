"""What other programs change in a workspace while branches of it live: reported by the kernel, or found by times."""
