"""Shared parts of constrained methods: cost limits and Lagrange multipliers."""
