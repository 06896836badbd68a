"""Results of a search: values and costs of finished runs, seeds of best.yaml, Optuna's studies."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offline_rl.runs.folder import SeedFolder
from offline_rl.runs.run import runs_of
from offline_rl.search import samplers
from offline_rl.search.options import SearchOptions
from offline_rl.search.search import (
    Search,
    best_experiment,
    common_keys,
    make_sampler,
    objective_of,
    selection_seeds,
)
from offline_rl.search.space import Choices, Interval
from offline_rl.search.trials import Objective, Trial, read_trial
from offline_rl.utils.errors import UserError
from offline_rl.utils.seeds import TRAINING_SEEDS

ALPHA = "algorithm.alpha"
KEYS: dict[str, Any] = {"algorithm": "td3_bc", "task": "neorl2/DMSD", "num_updates": 20}


def finished(run: Path, seed: int = 0, **changes: Any) -> SeedFolder:
    """Write the files of a finished seed."""
    folder = SeedFolder(run, seed)
    folder.path.mkdir(parents=True)
    result = {"task": "a task", "score": 40.0, "mean_return": 7.0, "diverged_at": None}
    result |= {"success": [True, False, False], "costs": [3.0, 6.0], "num_env_steps": 50}
    folder.result.write_text(json.dumps(result | changes))
    rows = [{"updates": k, "env_steps": 0, "train/critic_loss": 5.0 - k} for k in (1, 2, 3)]
    (folder.path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    row = {"updates": 20, "env_steps": 0, "lengths": [4, 9]}
    (folder.path / "evaluations.jsonl").write_text(json.dumps(row) + "\n")
    return folder


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score", 40),
        ("return", 7),
        ("success", 1 / 3),
        ("cost", 4.5),
        ("critic_loss", 2),  # the last one
        ("gone", None),
    ],
)
def test_a_value_is_that_of_the_last_evaluation_or_of_the_last_row(
    tmp_path: Path, name: str, value: float | None
) -> None:
    folder = finished(tmp_path)
    assert Objective(name, "maximize", None).value(folder) == (
        None if value is None else pytest.approx(value)
    )


def test_a_value_that_the_run_does_not_have(tmp_path: Path) -> None:
    """The return counts if there are no score references. A diverged policy has no value."""
    score, cost = Objective("score", "maximize", None), Objective("cost", "minimize", None)
    assert score.value(finished(tmp_path / "a", score=None)) == 7
    assert score.value(finished(tmp_path / "b", diverged_at=12)) is None
    with pytest.raises(UserError, match="objective=cost: a task reports no cost"):
        cost.value(finished(tmp_path / "c", costs=None))


def test_the_cost_of_a_setting_is_the_mean_over_all_of_its_seeds(tmp_path: Path) -> None:
    folders = [finished(tmp_path, 0), finished(tmp_path, 1, costs=[9.0, 10.0])]
    trial = read_trial({ALPHA: 1.0}, folders, Objective("score", "maximize", 5.0))
    assert trial.cost == pytest.approx((4.5 + 9.5) / 2)
    assert (trial.evaluations, trial.episodes, trial.env_steps) == (2, 4, 26)
    assert trial.training_env_steps == 100
    without = [finished(tmp_path / "b", 0), finished(tmp_path / "b", 1, costs=None)]
    assert read_trial({}, without, Objective("score", "maximize", None)).cost is None


def test_the_best_setting_is_trained_with_seeds_that_the_selection_did_not_use() -> None:
    """A count stands for the highest seeds. If the user chooses low ones, the next ones follow."""
    best = Trial({ALPHA: 2.0}, "run", [1.0])
    for seeds, expected in ((2, 5), ([1, 3], [0, 2, 4, 5, 6])):
        options = SearchOptions(**KEYS, seeds=seeds)
        common = common_keys(KEYS, options)
        experiment = best_experiment(KEYS, common, best, options)
        assert experiment["seeds"] == expected
        assert experiment[ALPHA] == 2
    assert selection_seeds(2) == [TRAINING_SEEDS - 1, TRAINING_SEEDS - 2]


@pytest.mark.parametrize(
    ("changes", "direction", "limit"),
    [
        ({}, "maximize", 5.0),
        ({"objective": "cost"}, "minimize", None),  # a limit of the quantity itself ranks nothing
        ({"objective": "return", "direction": "minimize"}, "minimize", 5.0),
    ],
)
def test_the_direction_is_that_of_the_objective_unless_it_is_set(
    changes: dict[str, str], direction: str, limit: float | None
) -> None:
    keys = KEYS | {"algorithm": "bc_safe", "target_cost": 5.0} | changes
    options = SearchOptions(**keys)
    (run,) = runs_of({k: v for k, v in keys.items() if k not in ("objective", "direction")})
    objective = objective_of(options, run)
    assert (objective.direction, objective.limit) == (direction, limit)


class Optuna:
    """The functions of Optuna that a study calls. It stores their arguments."""

    logging = SimpleNamespace(WARNING=0, set_verbosity=lambda level: None)
    trial = SimpleNamespace(TrialState=SimpleNamespace(FAIL="failed"))

    def __init__(self) -> None:
        self.direction, self.sampler, self.told = "", dict[str, Any](), list[Any]()
        self.asked: list[Any] = []
        self.samplers = SimpleNamespace(TPESampler=lambda **options: options)
        self.distributions = SimpleNamespace(
            FloatDistribution=lambda low, high, log=False: ("float", low, high, log),
            IntDistribution=lambda low, high, log=False: ("int", low, high, log),
            CategoricalDistribution=lambda values: ("index", *values),
        )

    def create_study(self, *, direction: str, sampler: Any) -> Any:
        self.direction, self.sampler = direction, sampler
        return SimpleNamespace(ask=self.ask, tell=self.tell)

    def ask(self, distributions: Any) -> Any:
        self.asked.append(distributions)
        attributes = dict[str, float]()
        number = len(self.asked) - 1
        return SimpleNamespace(
            number=number,
            params=dict.fromkeys(distributions, 1),
            user_attrs=attributes,
            set_user_attr=attributes.__setitem__,
        )

    def tell(self, trial: Any, value: float | None = None, state: str = "") -> None:
        self.told.append((trial.number, value, state, *self.violations(trial)))

    def violations(self, trial: Any) -> tuple[float, ...]:
        """Return what the sampler learns about the constraint; Optuna accepts at most 0."""
        function = self.sampler.get("constraints_func")
        return () if function is None else function(trial)


@pytest.fixture
def optuna(monkeypatch: pytest.MonkeyPatch) -> Optuna:
    made = Optuna()
    monkeypatch.setattr(samplers, "import_optuna", lambda *_: made)
    return made


@pytest.mark.parametrize(
    ("changes", "direction"),
    [
        ({}, "maximize"),
        ({"objective": "cost"}, "minimize"),
        ({"objective": "critic_loss"}, "minimize"),
        ({"objective": "critic_loss", "direction": "maximize"}, "maximize"),
    ],
)
def test_optuna_receives_direction_and_seed(
    optuna: Optuna, changes: dict[str, Any], direction: str
) -> None:
    options = SearchOptions(**KEYS, sampler="tpe", sampler_seed=3, **changes)
    make_sampler(options, [Choices(ALPHA, (1.0, 2.0), ordered=False)], constrained=False)
    assert optuna.direction == direction
    assert optuna.sampler["seed"] == 3


@pytest.mark.parametrize("constrained", [False, True])
def test_optuna_receives_values_divergences_and_violations_of_the_cost_limit(
    optuna: Optuna, constrained: bool
) -> None:
    options = SearchOptions(**KEYS, sampler="tpe", trials=3, parallel=2)
    space = [Choices(ALPHA, (1.0, 2.0), ordered=False)]
    sampler = make_sampler(options, space, constrained=constrained)
    assert sampler.ask() == [{ALPHA: 2.0}] * 2  # the index 1
    sampler.tell([7.0, None], [-2.0, 3.0])
    assert len(sampler.ask()) == 1
    sampler.tell([8.0], [0.5])
    expected = [(0, 7.0, ""), (1, None, "failed"), (2, 8.0, "")]
    costs = (-2.0, 3.0, 0.5)
    assert optuna.told == [
        (*row, cost) if constrained else row for row, cost in zip(expected, costs, strict=True)
    ]
    assert sampler.ask() == []


def test_optuna_receives_intervals_logarithms_and_indices(optuna: Optuna) -> None:
    space = [
        Interval("a", 1e-4, 1.0, log=True, integer=False),
        Interval("b", 1, 64, log=False, integer=True),
        Choices("c", (4, 8, 16), ordered=True),
        Choices("d", ("x", "y"), ordered=False),
    ]
    options = SearchOptions(**KEYS, sampler="tpe", trials=1)
    make_sampler(options, space, constrained=False).ask()
    assert optuna.asked == [
        {
            "a": ("float", 1e-4, 1.0, True),
            "b": ("int", 1, 64, False),
            "c": ("int", 0, 2, False),
            "d": ("index", 0, 1),
        }
    ]


class Rounds:
    """A sampler with two rounds. It stores what it is told."""

    def __init__(self) -> None:
        self.left = [[{ALPHA: 3.0}, {ALPHA: 1.0}], [{ALPHA: 2.0}, {ALPHA: 1.0}]]
        self.told = list[Any]()

    def ask(self) -> Any:
        return self.left.pop(0) if self.left else []

    def tell(self, values: Any, violations: Any) -> None:
        self.told.append((values, violations))


def test_a_sampler_is_told_the_values_of_its_own_round_and_no_setting_is_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value of a setting is its alpha, and its cost ten times as much."""
    from offline_rl.search import search as module

    trained = list[float]()

    def train(prepared: Any, show: bool) -> None:
        trained.extend(run.method.cfg.alpha for run in prepared)

    def read(setting: Any, folders: Any, objective: Objective) -> Trial:
        alpha = setting[ALPHA]
        assert [folder.path.parts[-2] for folder in folders] == [names[alpha]]
        return Trial(setting, "run", [alpha], cost=10 * alpha)

    monkeypatch.setattr(module, "prepare", lambda runs, read: runs)
    monkeypatch.setattr(module, "train_stack", train)
    monkeypatch.setattr(module.results, "read_trial", read)
    names = {3.0: "search-000", 1.0: "search-001", 2.0: "search-002"}
    options = SearchOptions(**KEYS)
    sampler, objective = Rounds(), Objective("score", "maximize", limit=15.0)
    common = common_keys(KEYS, options)
    Search(common, options, objective, tmp_path, {}, show=False).run(sampler)
    assert trained == [3, 1, 2]
    assert sampler.told == [([3.0, 1.0], [15.0, -5.0]), ([2.0, 1.0], [5.0, -5.0])]
