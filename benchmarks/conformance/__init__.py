"""Our updates beside public code: same weights, batches and random numbers, in float64."""
