"""Search: sweeps, samplers, ranking, seeds of the selection, continuation, and stacked settings."""

import json
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from small_data import save_small

from offline_rl.algorithms.common.registry import algorithm_class
from offline_rl.cli.compose import compose, split_sweeps
from offline_rl.engine.engine import Engine
from offline_rl.runs.run import option_types, runs_of
from offline_rl.search.options import SearchOptions
from offline_rl.search.samplers import Study, grid, random_settings
from offline_rl.search.search import SearchResult, make_sampler, programs, search
from offline_rl.search.space import Choices, Interval, parse_space
from offline_rl.search.trials import Objective, Trial, expected_best, ranked
from offline_rl.utils import seeds
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import read_json

TYPES = option_types(algorithm_class("td3_bc"))
ALPHA, TAU = "algorithm.alpha", "algorithm.tau"
KEYS: dict[str, Any] = {
    "algorithm": "td3_bc",
    "task": "neorl2/DMSD",
    "dataset": "small.npz",
    "num_updates": 20,
    "eval_episodes": 2,
    "compile": "never",
    "tracker": "none",
    "algorithm.hidden": [8, 8],
}


SPACE, OPTIONS = {ALPHA: "choice(0.1,10)", TAU: "interval(0.001,0.1)"}, {"trials": 3}


def parse(**texts: str) -> list[Any]:
    return parse_space({key.replace("__", "."): text for key, text in texts.items()}, TYPES)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder in which a search over three settings has finished."""
    folder = tmp_path_factory.mktemp("search")
    save_small(folder / "small.npz")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        search(KEYS | OPTIONS, SPACE, show=False)
    return folder


FOLDER = Path("searches", "neorl2_DMSD", "td3_bc", "search")


# grammar


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        (ALPHA, "choice(1,2.5)", Choices(ALPHA, (1.0, 2.5), False)),
        (ALPHA, "1,2.5", Choices(ALPHA, (1.0, 2.5), False)),
        (ALPHA, "choice(1,1.0,2)", Choices(ALPHA, (1.0, 2.0), False)),
        (ALPHA, "range(0.5,2,0.5)", Choices(ALPHA, (0.5, 1.0, 1.5), True)),
        (ALPHA, "range(3,0,-1)", Choices(ALPHA, (3.0, 2.0, 1.0), True)),
        ("batch_size", "range(1,4)", Choices("batch_size", (1, 2, 3), True)),
        ("batch_size", "interval(1,4)", Interval("batch_size", 1, 4, False, True)),
        (ALPHA, "interval(1,4)", Interval(ALPHA, 1, 4, False, False)),
        (TAU, "tag(log,interval(1e-4,1e-1))", Interval(TAU, 1e-4, 1e-1, True, False)),
        (
            "algorithm.hidden",
            "choice([64,64],[256])",
            Choices("algorithm.hidden", ((64, 64), (256,)), False),
        ),
        (
            "algorithm.normalize_observations",
            "choice(true,false)",
            Choices("algorithm.normalize_observations", (True, False), False),
        ),
    ],
)
def test_hydras_sweeps_describe_values(key: str, text: str, expected: object) -> None:
    assert parse_space({key: text}, TYPES) == [expected]


@pytest.mark.parametrize(
    ("key", "text", "sentence"),
    [
        ("task", "choice(a,b)", "task cannot be searched. Search algorithm.<field>"),
        ("seeds", "1,2", "seeds cannot be searched"),
        ("algorithm.alhpa", "1,2", r"unknown option 'algorithm.alhpa'; did you mean algorithm.alp"),
        (ALPHA, "range(5,5)", "is an empty range. Use range"),
        (ALPHA, "range(1,5,-1)", "is an empty range"),
        (ALPHA, "range(1,5,0)", "is an empty range"),
        (ALPHA, "interval(2,2)", "is an empty range. Use interval"),
        (ALPHA, "range(0,1,1e-9)", "has more than 10,000 values"),
        (ALPHA, "tag(log,interval(0,1))", "a logarithmic interval must start above 0"),
        (ALPHA, "tag(log,choice(1,2))", "the tag log is not supported here"),
        (ALPHA, "tag(x,interval(1,2))", "the tag x is not supported here"),
        (ALPHA, "shuffle(choice(1,2))", "shuffle has no effect"),
        (ALPHA, "glob(*)", "is not a sweep"),
        (ALPHA, "choice(1,a)", "algorithm.alpha='a': expected a number"),
        ("batch_size", "interval(1.5,3)", "batch_size is an integer"),
        ("algorithm.hidden", "interval(1,3)", "algorithm.hidden is not a number"),
        ("algorithm.normalize_observations", "interval(0,1)", "is not a number"),
    ],
)
def test_a_sweep_that_cannot_be_searched_is_refused(key: str, text: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        parse_space({key: text}, TYPES)


def test_a_search_needs_a_sweep_and_one_name_for_each_option() -> None:
    with pytest.raises(UserError, match="needs an option with several values"):
        parse_space({}, TYPES)
    with pytest.raises(UserError, match="are the same option"):
        parse_space({"batch_size": "1,2", "algorithm.batch_size": "1,2"}, TYPES)


def test_the_command_line_is_split_into_options_and_sweeps(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("algorithm: td3_bc\ntask: none\nalgorithm.alpha: 1.0\n")
    keys, space = split_sweeps([f"experiment={path}", f"{ALPHA}=1,2", "seeds=[3]"])
    assert space == {ALPHA: "1,2"}
    assert keys == {"algorithm": "td3_bc", "task": "none", "seeds": [3], "name": "mine"}


# samplers


def test_a_grid_has_every_combination() -> None:
    space = parse(algorithm__alpha="1,2", batch_size="range(1,3)")
    assert [(s[ALPHA], s["batch_size"]) for s in grid(space, None)] == [
        (1.0, 1),
        (1.0, 2),
        (2.0, 1),
        (2.0, 2),
    ]
    with pytest.raises(UserError, match="the grid has 4 settings"):
        grid(space, 3)
    with pytest.raises(UserError, match=r"algorithm\.tau is an interval"):
        grid(parse(algorithm__tau="interval(0,1)"), None)


def test_random_settings_are_distributed_as_the_grammar_says() -> None:
    space = parse(
        algorithm__alpha="interval(2,6)",
        algorithm__tau="tag(log,interval(1e-4,1e-2))",
        batch_size="tag(log,interval(1,100))",
    )
    draws = random_settings(space, 400, seed=0)
    for key, middle in ((ALPHA, 4.0), (TAU, 1e-3), ("batch_size", 8.5)):
        values = np.array([setting[key] for setting in draws])
        # the log interval of integers is [0.5, 100.5], with the middle sqrt(0.5 * 100.5) = 7.1
        share = 0.5 if key != "batch_size" else np.log(8.5 / 0.5) / np.log(201)
        assert abs((values < middle).mean() - share) < 4 * 0.5 / 20
    assert all(2 <= s[ALPHA] <= 6 and 1e-4 <= s[TAU] <= 1e-2 for s in draws)
    assert {type(s["batch_size"]) for s in draws} == {int}


def test_more_random_settings_begin_with_the_fewer() -> None:
    space = parse(algorithm__alpha="interval(0,1)", batch_size="1,2,3")
    few, many = (random_settings(space, n, seed=1) for n in (3, 6))
    assert many[:3] == few
    assert [dict(s) for s in random_settings(space[::-1], 3, seed=1)] == few
    assert random_settings(space, 3, seed=2) != few


def test_no_random_setting_is_proposed_twice() -> None:
    space = parse(algorithm__alpha="1,2", batch_size="interval(1,3)")
    drawn = random_settings(space, 100, seed=0)
    pairs = {(s[ALPHA], s["batch_size"]) for s in drawn}
    assert len(drawn) == len(pairs) == 6


def test_without_optuna_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    options = SearchOptions(algorithm="td3_bc", task="none", sampler="tpe")
    with pytest.raises(UserError, match=r"sampler=tpe.*\.\[search\]"):
        make_sampler(options, parse(algorithm__alpha="1,2"), constrained=False)


def best_of_study(name: str, *, constrained: bool = False) -> tuple[list[Any], float]:
    """Return the settings that a study proposes on a parabola around tau = 0.01, and the best."""
    space = parse(
        algorithm__tau="tag(log,interval(1e-4,1))",
        batch_size="range(8,40,8)",
        algorithm__alpha="1,2",
    )
    study = Study(
        space,
        name,
        trials=40,
        round_size=4,
        seed=0,
        direction="minimize",
        constrained=constrained,
    )
    proposals, values = list[Any](), list[float]()
    while settings := study.ask():
        errors = [(np.log10(s[TAU]) + 2) ** 2 + abs(s["batch_size"] - 16) / 8 for s in settings]
        study.tell([None, *errors[1:]], [0.0] * len(errors))  # the first of each round diverges
        proposals, values = [*proposals, *settings], [*values, *errors[1:]]
    return proposals, min(values)


@pytest.mark.parametrize(
    "name", ["tpe", "cmaes", "qmc", pytest.param("gp", marks=pytest.mark.slow)]
)
def test_optunas_samplers_repeat_their_settings(name: str) -> None:
    pytest.importorskip("optuna", reason="needs the extra search")
    proposals, best = best_of_study(name)
    assert len(proposals) == 40
    assert best_of_study(name) == (proposals, best)
    assert all(s["batch_size"] in (8, 16, 24, 32) and s[ALPHA] in (1.0, 2.0) for s in proposals)
    assert best < 0.5


# ranking


def trial(values: Sequence[float | None], cost: float | None = None) -> Trial:
    return Trial({ALPHA: 1.0}, "run", list(values), cost)


def test_settings_rank_by_the_mean_over_seeds_and_diverged_ones_last() -> None:
    low, high, broken = trial([0.0, 3.0]), trial([2.0, 2.0]), trial([9.0, None])
    assert ranked([low, broken, high], Objective("score", "maximize", None)) == [high, low, broken]
    assert ranked([high, broken, low], Objective("cost", "minimize", None)) == [low, high, broken]
    assert ranked([low, low], Objective("score", "maximize", None))[0] is low


def test_settings_above_the_cost_limit_rank_below_all_safe_ones() -> None:
    safe, better, unsafe, worse = (
        trial([value], cost) for value, cost in ((1.0, 9.0), (2.0, 10.0), (5.0, 10.1), (8.0, 20.0))
    )
    objective = Objective("score", "maximize", limit=10.0)
    assert ranked([worse, safe, unsafe, better], objective) == [better, safe, unsafe, worse]


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_the_expected_best_is_the_mean_over_all_subsets(direction: str) -> None:
    values = [3.0, -1.0, 4.0, 1.5, 4.0]
    best = max if direction == "maximize" else min
    subsets = [list(combinations(values, k)) for k in range(1, 6)]
    expected = [fmean(best(subset) for subset in of_size) for of_size in subsets]
    np.testing.assert_allclose(expected_best(values, direction), expected, rtol=1e-12)


# programs


def test_settings_that_stack_share_a_program_up_to_the_limit() -> None:
    jobs = {
        f"{alpha} {hidden}": {
            **KEYS,
            ALPHA: alpha,
            "algorithm.hidden": [hidden],
            "name": f"x-{alpha}-{hidden}",
        }
        for alpha in (1.0, 2.0, 3.0)
        for hidden in (8, 16)
    }
    assert programs(jobs, 16) == [["1.0 8", "2.0 8", "3.0 8"], ["1.0 16", "2.0 16", "3.0 16"]]
    assert programs(jobs, 2)[:2] == [["1.0 8", "2.0 8"], ["3.0 8"]]


@pytest.mark.parametrize(
    ("changes", "space", "sentence"),
    [
        ({"task": "none"}, {ALPHA: "1,2"}, "objective=score needs an environment"),
        ({}, {TAU: "0.1,2"}, r"tau=2\.0 is not between 0 and 1"),
        ({}, {TAU: "interval(-1,1)"}, r"tau=-1\.0 is not between 0 and 1"),
        ({"algorithm": "tdx"}, {ALPHA: "1,2"}, "tdx"),
        ({"smapler": "grid"}, {ALPHA: "1,2"}, "unknown option 'smapler'; did you mean sampler"),
        ({"sampler": "best"}, {ALPHA: "1,2"}, "sampler='best': expected one of grid, random"),
        ({TAU: [0.1, 0.2]}, {ALPHA: "1,2"}, "algorithm.tau=.*expected a number"),
        ({"eval_episodes": "all", "task": "neorl2/Simglucose"}, {ALPHA: "1,2"}, "leaves no init"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    changes: dict[str, Any],
    space: dict[str, str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    save_small(tmp_path / "small.npz")
    with pytest.raises(UserError, match=sentence):
        search(KEYS | changes, space, show=False)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "small.npz"]


# from end to end


def test_a_search_writes_its_ranking_and_the_use_of_the_environment(place: Path) -> None:
    content = read_json(place / FOLDER / "search.json")
    values = [entry["value"] for entry in content["trials"]]
    assert len(values) == 3
    assert values == sorted(values, reverse=True)
    online = content["online"]
    rows = [
        json.loads(line)
        for file in (place / FOLDER.parent).glob("search-*/seed_900/evaluations.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert online["compared_evaluations"] == 3
    assert online["evaluations"] == len(rows) == 6  # before and after training
    assert online["episodes"] == 12
    assert online["env_steps"] == sum(sum(row["lengths"]) for row in rows)
    assert "12 episodes" in (place / FOLDER / "search.md").read_text()


def test_the_settings_were_trained_side_by_side(place: Path) -> None:
    folders = [*(place / FOLDER.parent).glob("search-*/seed_900")]
    configs = [read_json(folder / "config.json")["hyper"] for folder in folders]
    assert len({(hyper["alpha"], hyper["tau"]) for hyper in configs}) == 3
    assert {read_json(folder / "result.json")["seeds_stacked"] for folder in folders} == {3}


def test_selection_and_evaluation_share_no_seed(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a training seed nor an episode; `report` says that the scores are no evaluation."""
    monkeypatch.chdir(place)
    (job,) = compose([f"experiment={FOLDER}/best.yaml"]).jobs
    runs = runs_of(job)
    assert [run.seed for run in runs] == [0, 1, 2, 3, 4]
    assert not any(run.evaluation.selection for run in runs)
    for file in FOLDER.parent.glob("search-*/seed_*/evaluations.jsonl"):
        for line in file.read_text().splitlines():
            assert all(seed in seeds.RANGES["selection"] for seed in json.loads(line)["seeds"])
    from offline_rl.reporting.report import report

    assert "Selection episodes of a search, not evaluation: td3_bc" in str(report("searches"))


def test_best_yaml_has_the_best_setting_and_the_options_of_the_command(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    best = read_json(FOLDER / "search.json")["trials"][0]["setting"]
    (job,) = compose([f"experiment={FOLDER}/best.yaml"]).jobs
    run = runs_of(job)[0]
    assert (run.method.cfg.alpha, run.method.cfg.tau) == (best[ALPHA], best[TAU])
    assert (run.method.cfg.hidden, run.budget.num_updates) == ((8, 8), 20)
    assert (run.name, run.output.out) == ("search-best", "runs")
    assert "biased upward" in (FOLDER / "best.yaml").read_text()


def test_a_finished_search_is_not_repeated_and_more_trials_extend_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    before = (FOLDER / "search.json").read_bytes()
    monkeypatch.setattr(Engine, "run", None)
    search(KEYS | OPTIONS, SPACE, show=False)
    assert (FOLDER / "search.json").read_bytes() == before
    with pytest.raises(UserError, match=r"with algorithm\.alpha=choice\(0\.1,10\), now it is 1,2"):
        search(KEYS | OPTIONS, SPACE | {ALPHA: "1,2"}, show=False)
    with pytest.raises(UserError, match=r"was started with sampler_seed=0, now it is 1"):
        search(KEYS | OPTIONS | {"sampler_seed": 1}, SPACE, show=False)
    with pytest.raises(TypeError, match="NoneType"):  # it would train the fourth setting
        search(KEYS | OPTIONS | {"trials": 4}, SPACE, show=False)


@pytest.mark.slow  # the names of the metrics are those of the traced update
def test_an_unknown_objective_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_small(tmp_path / "small.npz")
    with pytest.raises(UserError, match="objective 'critic_los'; did you mean critic_loss"):
        search(KEYS | {"objective": "critic_los"}, SPACE, show=False)
    assert not (tmp_path / "searches").exists()


def run_search(folder: Path, **changes: Any) -> SearchResult:
    """Run a small search in a folder that contains the data."""
    space = {ALPHA: "choice(0.1,10)", TAU: "tag(log,interval(1e-4,0.5))"}
    keys = KEYS | {"checkpoint_every": 4, "trials": 4, "parallel": 2, **changes}
    return search(keys, space, show=False)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_killed_search_continues_with_equal_results(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in the middle of a program, and between two programs."""
    if sampler == "tpe":
        pytest.importorskip("optuna", reason="needs the extra search")
    for name in ("undisturbed", "killed"):
        (tmp_path / name).mkdir()
        save_small(tmp_path / name / "small.npz")
    monkeypatch.chdir(tmp_path / "undisturbed")
    run_search(tmp_path, sampler=sampler)
    monkeypatch.chdir(tmp_path / "killed")
    run, calls = Engine.run, [0]

    def killed(engine: Engine, *arguments: Any) -> None:
        calls[0] += 1
        if calls[0] in (5, 13):
            raise KeyboardInterrupt
        run(engine, *arguments)

    monkeypatch.setattr(Engine, "run", killed)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_search(tmp_path, sampler=sampler)
    run_search(tmp_path, sampler=sampler)
    one, other = (
        (tmp_path / name / FOLDER / "search.json").read_bytes()
        for name in ("undisturbed", "killed")
    )
    assert one == other


@pytest.mark.slow
def test_stacked_settings_rank_as_single_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A metric is compared, because scores of untrained policies are equal."""
    monkeypatch.chdir(tmp_path)
    save_small(tmp_path / "small.npz")
    found = [
        run_search(tmp_path, objective="critic_loss", parallel=n, name=f"p{n}", num_updates=200)
        for n in (4, 1)
    ]
    stacked, single = ([(t.setting, t.value) for t in each.trials] for each in found)
    assert [setting for setting, _ in stacked] == [setting for setting, _ in single]
    np.testing.assert_allclose([v for _, v in stacked], [v for _, v in single], rtol=1e-3)
    assert [
        read_json(Path(t.run) / "seed_900/result.json")["seeds_stacked"] for t in found[0].trials
    ] == [4] * 4
