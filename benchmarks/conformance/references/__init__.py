"""Adapters: one file a repository, a function for each algorithm that it has."""
