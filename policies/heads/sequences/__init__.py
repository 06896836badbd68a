"""Heads that read the past steps of an episode."""
