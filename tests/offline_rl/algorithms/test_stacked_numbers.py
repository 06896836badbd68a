"""Numbers that may differ between stacked settings: which they are, and that results are equal."""

import sys
from dataclasses import fields
from typing import Any

import pytest
from test_contract import FACTS, SPEC, dataset, largest_difference, small_config, sources

from offline_rl.algorithms.common.base import Algorithm, Interaction
from offline_rl.algorithms.common.registry import algorithm_class, algorithm_names
from offline_rl.engine.engine import Engine
from offline_rl.runs.run import stackable_names

INITIAL = {("cdt", "initial_temperature")}  # initial parameters, which each setting has of its own


def recording(cfg: Any, names: frozenset[str], reads: set[str]) -> Any:
    """Return a copy of a config that adds the fields of `names` to `reads` when they are read."""

    class Recording(type(cfg)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            # checks of the config itself, and comparisons with online training, do not count
            caller = sys._getframe(1).f_code.co_qualname
            checks = ("__post_init__", "refuse_unread", "own_values", "replace", "asdict")
            if name in names and not any(word in caller for word in checks):
                reads.add(name)
            return object.__getattribute__(self, name)

    copied = object.__new__(Recording)
    for field in fields(type(cfg)):
        object.__setattr__(copied, field.name, getattr(cfg, field.name))
    return copied


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithm_names())
def test_data_networks_and_heads_depend_on_no_stackable_number(name: str) -> None:
    """All settings of a program share them, so they would be those of the first setting."""
    cls, reads = algorithm_class(name), set[str]()
    cfg = recording(small_config(cls), stackable_names(cls), reads)
    algorithm = cls(SPEC, cfg, 100, Interaction(cls.Online.small(), cfg))
    algorithm.facts = FACTS if cls.uses_facts else None
    _ = algorithm.modules, algorithm.phases, algorithm.period, algorithm.rings()
    algorithm.acting_head()
    algorithm.exploring_head()
    algorithm.prepare(dataset())
    algorithm.make_columns(dataset())
    assert {(name, field) for field in reads} <= INITIAL


def changed_values(cls: type[Algorithm]) -> dict[str, float]:
    """Return another valid value for each stackable number that the small config uses."""
    base, changed = small_config(cls), dict[str, float]()
    for field in sorted(stackable_names(cls)):
        own = getattr(base, field)
        for value in (own * 0.7, own * 1.3, 0.3, 0.6, 0.95, 0.05, 2.0):
            try:
                small_config(cls, **{**changed, field: value})
            except Exception:  # out of range, or unused with the other options
                continue
            if value != own:
                changed[field] = value
                break
    return changed


@pytest.mark.slow
@pytest.mark.parametrize("name", algorithm_names())
def test_stacked_settings_equal_single_runs(name: str) -> None:
    """All stackable numbers differ at the same time, in every phase."""
    cls = algorithm_class(name)
    changed = changed_values(cls)
    cfgs = [small_config(cls), small_config(cls, **changed)]
    values = {field: [getattr(cfg, field) for cfg in cfgs] for field in changed}

    def engine_of(chosen: list[Any], **options: Any) -> Engine:
        def make(s: int) -> Algorithm:
            algorithm = cls(SPEC, chosen[s], 100, Interaction(cls.Online.small(), chosen[s]))
            algorithm.facts = FACTS if cls.uses_facts else None
            return algorithm

        made = sources(cls, chosen[0])
        return Engine(make, [5] * len(chosen), made, batch_size=32, **options)

    both, alone = engine_of(cfgs, values=values), engine_of(cfgs[1:])
    for phase in (*both.algorithm.phases, "update"):
        if hasattr(both.algorithm, phase):
            updates = -(-4 // both.period(phase)) * both.period(phase)
            both.run(updates, phase)
            alone.run(updates, phase)
    assert largest_difference(alone.seed_state(0), both.seed_state(1)) < 1e-4
