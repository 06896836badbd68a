"""Networks that read sequences."""
