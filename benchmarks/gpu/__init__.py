"""`python -m benchmarks.gpu`: correctness and speed of training on a GPU, within minutes."""
