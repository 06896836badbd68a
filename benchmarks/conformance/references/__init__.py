"""Adapters to public code: one file per repository, one function per algorithm."""
