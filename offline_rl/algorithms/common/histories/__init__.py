"""Observation histories for methods that learn values."""
