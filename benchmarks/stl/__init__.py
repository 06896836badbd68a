"""Experiments with signal temporal logic: backup policy, neural controller, conformance."""
