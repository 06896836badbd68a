"""Models that are fitted to data: of behavior and of the environment."""
