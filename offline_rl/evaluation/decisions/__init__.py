"""Evaluation of policies at lower decision frequencies, random intervals, or with a delay."""
