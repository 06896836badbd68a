"""Programs that measure the numbers published by this project."""
