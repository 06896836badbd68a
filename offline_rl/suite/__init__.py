"""Suites of runs: their definition, their estimated cost, and a queue that runs them."""
