"""Environments, tasks, dataset cards and score normalization."""

from envs.cards import Card, CardError, Reference, UnknownName, card, cards
from envs.faults import Broken
from envs.outcomes import Outcomes
from envs.tasks import Task, make, make_vector, names, register, task
from envs.vector import Step, VectorEnv

__all__ = [
    "Broken",
    "Card",
    "CardError",
    "Outcomes",
    "Reference",
    "Step",
    "Task",
    "UnknownName",
    "VectorEnv",
    "card",
    "cards",
    "make",
    "make_vector",
    "names",
    "register",
    "task",
]
