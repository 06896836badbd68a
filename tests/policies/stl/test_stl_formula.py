"""Formulas of signal temporal logic: their text, and their exact robustness on signals."""

from collections.abc import Callable
from math import inf

import numpy as np
import pytest

from policies import Channel, Spec
from policies.stl.formula import FormulaError, Signal, parse
from policies.stl.robustness import is_satisfied, robustness
from policies.stl.signals import EpisodeRecorder, SignalReader, places

SIGNALS = ("x", "y.z")
Brute = Callable[[dict[str, list[float]], int], float]  # signals, step -> robustness


def random_formula(rng: np.random.Generator, depth: int) -> tuple[str, Brute]:
    """Return the text of a random formula, and its definition by recursion over single steps."""
    if depth == 0 or rng.random() < 0.15:
        name, c = str(rng.choice(SIGNALS)), round(float(rng.normal()), 2)
        other, factor = str(rng.choice(SIGNALS)), float(rng.choice([-2.0, 0.0, 0.5, 3.0]))
        above = bool(rng.integers(2))

        def difference(v: dict[str, list[float]], t: int) -> float:
            value = v[name][t] + factor * v[other][t] - c
            return value if above else -value

        text = f"{name} + {factor} * {other} {'>=' if above else '<'} {c}"
        return (text if rng.integers(2) else f"({text})"), difference
    kind = rng.choice(["not", "and", "or", "implies", "always", "eventually", "until"])
    (a, f), (b, g) = random_formula(rng, depth - 1), random_formula(rng, depth - 1)
    start, length = int(rng.integers(0, 4)), int(rng.integers(0, 6))
    window, stop = [
        ("", inf),
        (f"[{start},inf]", inf),
        (f"[{start},{start + length}]", start + length),
    ][rng.integers(3)]
    start = start if window else 0

    def steps(v: dict[str, list[float]], t: int) -> list[int]:
        return [k for k in range(len(v["x"])) if t + start <= k <= t + stop]

    match kind:
        case "not":
            return f"not ({a})", lambda v, t: -f(v, t)
        case "and":
            return f"({a}) and ({b})", lambda v, t: min(f(v, t), g(v, t))
        case "or":
            return f"({a}) or ({b})", lambda v, t: max(f(v, t), g(v, t))
        case "implies":
            return f"({a}) implies ({b})", lambda v, t: max(-f(v, t), g(v, t))
        case "always":
            return f"always{window} ({a})", lambda v, t: min([f(v, k) for k in steps(v, t)] + [inf])
        case "eventually":
            text = f"eventually{window} ({a})"
            return text, lambda v, t: max([f(v, k) for k in steps(v, t)] + [-inf])

    def until(v: dict[str, list[float]], t: int) -> float:
        held = [min([g(v, k), *(f(v, i) for i in range(t, k + 1))]) for k in steps(v, t)]
        return max([*held, -inf])

    return f"({a}) until{window} ({b})", until


@pytest.mark.parametrize("seed", range(8))
def test_robustness_equals_the_recursive_definition_on_random_formulas(seed: int) -> None:
    rng, operators = np.random.default_rng(seed), 0
    for _ in range(40):
        text, brute = random_formula(rng, depth=int(rng.integers(1, 4)))
        length = int(rng.integers(1, 12))
        signals = {name: np.round(rng.normal(size=length), 3) for name in SIGNALS}
        values = {Signal(name): x for name, x in signals.items()}
        lists = {name: x.tolist() for name, x in signals.items()}
        expected = np.array([brute(lists, t) for t in range(length)])
        formula = parse(text)
        found = robustness(formula, values)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12, err_msg=text)
        assert np.array_equal(
            is_satisfied(formula, values)[expected != 0], (expected > 0)[expected != 0]
        )
        operators += text.count("always") + text.count("until")
    assert operators > 10


def test_windows_include_both_ends_and_are_cut_at_the_end_of_the_episode() -> None:
    x = {Signal("x"): np.array([5.0, 3.0, 4.0, 9.0])}
    assert robustness(parse("always[1,2] x > 0"), x).tolist() == [3, 4, 9, inf]
    assert robustness(parse("eventually[1,2] x > 0"), x).tolist() == [4, 9, 9, -inf]
    assert robustness(parse("eventually[2,inf] x > 0"), x).tolist() == [9, 9, -inf, -inf]


def test_a_bound_that_is_reached_satisfies_only_the_weak_inequality() -> None:
    x = {Signal("cost"): np.zeros(3)}
    assert is_satisfied(parse("always(cost <= 0)"), x).all()
    assert not is_satisfied(parse("eventually(cost < 0)"), x).any()
    assert is_satisfied(parse("not (cost > 0)"), x).all()


def test_operators_bind_from_not_over_until_and_or_to_implies() -> None:
    full = "(((not (x > 0)) until (y > 0)) and (x < 3)) or (y < 1)"
    assert parse("not x > 0 until y > 0 and x < 3 or y < 1").root == parse(full).root
    right = parse("x > 0 implies (y > 0 implies x > 1)").root
    assert parse("x > 0 implies y > 0 implies x > 1").root == right


def test_expressions_are_linear_combinations() -> None:
    values = {Signal("x"): np.array([2.0]), Signal("o", 1): np.array([10.0])}
    assert robustness(parse("2 * (x - o[1] / 4) + 3 >= -x"), values) == 2 * (2 - 2.5) + 3 + 2
    assert robustness(parse("-1 < x <= 1.5e0"), values) == -0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("always[0,2](x", "position 14: expected ), found the end"),
        ("x > 1 and", "position 10: expected a signal or a number, found the end"),
        ("x = 2", "position 3: found '=', which formulas do not use"),
        ("x > 1 y", "position 7: expected an operator, found 'y'"),
        ("always[3,1] x > 0", "position 7: the window [3,1] ends before it starts"),
        ("always[0.5,1] x > 0", "position 8: expected a number of steps"),
        ("x * y > 1", "position 5: a product of two signals is not linear"),
        ("x / 0 > 1", "position 5: the divisor must be a number other than 0"),
        ("x and y > 0", "position 1: expected a formula, found a number"),
        ("(x > 1) + 2 > 0", "position 1: expected a number, found a formula"),
        ("x - x > 1", "position 1: the comparison contains no signal"),
        ("x > 1e999", "position 5: 1e999 is too large"),
        ("(" * 5000 + "x > 1", "too many nested parentheses"),
    ],
)
def test_a_syntax_error_is_one_sentence_with_its_position(text: str, message: str) -> None:
    with pytest.raises(FormulaError) as error:
        parse(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


SPEC = Spec(
    (Channel("state", (3,), names=("glucose", "speed", "my name")), Channel("goal", (1,))), 2
)


def test_signals_are_found_by_name_by_channel_and_by_index() -> None:
    formula = parse("glucose + state[1] + 'my name' + goal + action[1] + reward - cost > 0")
    found = [tuple(place) for place in places(formula, SPEC)]
    expected = [("state", 0), ("state", 1), ("state", 2), ("goal", 0)]
    assert found == [*expected, ("action", 1), ("reward", 0), ("cost", 0)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("always glucos > 1", "position 8: there is no signal glucos. The signals are glucose, "),
        ("state > 1", "position 1: state has 3 values. Choose one: state[0]"),
        ("goal[1] > 1", "position 1: goal[1] does not exist: goal has 1 values"),
        ("1 < action", "position 5: action has 2 values"),
    ],
)
def test_an_unknown_signal_is_named_with_its_position(text: str, message: str) -> None:
    with pytest.raises(FormulaError, match="stl, position") as error:
        places(parse(text), SPEC)
    assert message in str(error.value)


def test_a_name_in_two_channels_needs_its_channel() -> None:
    spec = Spec((Channel("a", (1,), names=("x",)), Channel("b", (2,), names=("x", "y"))), 1)
    with pytest.raises(
        FormulaError, match=r"several channels have a value x. Use a\[0\] or b\[0\]"
    ):
        places(parse("x > 0"), spec)


def test_a_recorded_episode_has_its_final_observation_and_repeats_the_last_feedback() -> None:
    """Two episodes of 1 and 100 steps: step k returns observation k + 1, reward k and cost -k."""
    formula = parse(
        "eventually[1,1](observation > 0) and always(reward + cost >= 0) "
        "and eventually[100,100](observation >= 100 and reward >= 99) and always(action < 100)"
    )
    reader = SignalReader(formula, Spec((1,), 1))
    recorder = EpisodeRecorder(reader, np.zeros((2, 1)))
    for k in range(100):
        rows = np.arange(2) if k == 0 else np.array([1])
        row = np.full(len(rows), float(k))
        recorder.add(rows, row[:, None], row[:, None] + 1, row, -row)
    verdict = recorder.verdict()
    assert verdict.robustness.tolist() == [-inf, 0]
    assert verdict.satisfied.tolist() == [False, True]


def test_a_formula_about_costs_needs_an_environment_with_costs() -> None:
    reader = SignalReader(parse("always(cost <= 0)"), Spec((1,), 1))
    recorder, one = EpisodeRecorder(reader, np.zeros((1, 1))), np.zeros(1)
    with pytest.raises(FormulaError, match="position 8: the environment reports no cost"):
        recorder.add(np.array([0]), one[:, None], one[:, None], one, None)
