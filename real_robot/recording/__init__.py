"""Recording of every tick to disk, without delaying the control loop, and reading it back."""
