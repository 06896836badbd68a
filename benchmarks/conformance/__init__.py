"""Comparison of updates with public code: same weights, batches and random numbers, in float64."""
