"""Constrained tasks: runners with a speed limit, and a point and an ant among hazards."""
