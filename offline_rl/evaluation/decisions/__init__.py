"""Evaluations of policies that decide less often, irregularly or late."""
