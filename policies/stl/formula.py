"""Formulas of signal temporal logic (STL) and their parser.

    always(glucose > 70) and eventually[0,60](distance < 0.1)

    numbers    + - * / with constants, so that every expression is linear in the signals
    predicates a < b, a <= b, a > b, a >= b, and chains such as -1 < x <= 1
    operators  not, always, eventually, until, and, or, implies; from the strongest to the weakest
    windows    always[a,b], eventually[a,b], until[a,b]: steps from now, both ends included.
               [a,inf], or no window, goes to the end of the episode
    signals    x, observation[3], shoulder.q, or 'any name' in quotes

Reference: Maler and Nickovic, FORMATS 2004; robustness of Donze and Maler, FORMATS 2010.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import NoReturn

TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_][\w.]*)"
    r"|'(?P<quoted>[^']+)'|(?P<mark><=|>=|[<>()\[\],+\-*/]))"
)
TEMPORAL = ("always", "eventually")
WORDS = (*TEMPORAL, "until", "and", "or", "not", "implies", "inf")
EXCERPT = 12  # characters of the formula that an error message shows


class FormulaError(ValueError):
    """Raised for a formula with a syntax error, an unknown signal or a window without steps."""


@dataclass(frozen=True)
class Window:
    """Steps from now, `start` to `stop`, both included. stop=None: to the end of the episode."""

    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Signal:
    """Name of a signal. `index` selects a component of a vector."""

    name: str
    index: int | None = None

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}[{self.index}]"


@dataclass(frozen=True)
class Predicate:
    """A linear inequality: sum of coefficient * signal, plus `constant`, is > 0 or >= 0."""

    terms: tuple[tuple[Signal, float], ...]
    constant: float
    strict: bool  # True: > 0, False: >= 0


@dataclass(frozen=True)
class Not:
    part: Node


@dataclass(frozen=True)
class And:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Or:
    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Always:
    part: Node
    window: Window = Window()


@dataclass(frozen=True)
class Eventually:
    part: Node
    window: Window = Window()


@dataclass(frozen=True)
class Until:
    """`right` holds at a step of the window, and `left` holds from now to this step, included."""

    left: Node
    right: Node
    window: Window = Window()


Node = Predicate | Not | And | Or | Always | Eventually | Until


@dataclass(frozen=True)
class Formula:
    """A parsed formula."""

    text: str
    root: Node
    positions: dict[Signal, int]  # the formula's signals -> first position in the text, from 1

    @property
    def signals(self) -> tuple[Signal, ...]:
        return tuple(self.positions)

    def fail(self, signal: Signal, problem: str) -> NoReturn:
        """Raise FormulaError for a signal, with its position."""
        raise FormulaError(f"stl, position {self.positions[signal]}: {problem}")


def steps_ahead(node: Node) -> int:
    """Return the smallest number of later steps with which no window of the first step is empty."""
    match node:
        case Predicate():
            return 0
        case Not(part):
            return steps_ahead(part)
        case And(parts) | Or(parts):
            return max(map(steps_ahead, parts))
        case Always(part, window) | Eventually(part, window):
            return window.start + steps_ahead(part)
        case Until(left, right, window):
            return window.start + max(steps_ahead(left), steps_ahead(right))


def parse(text: str) -> Formula:
    """Parse a formula. Raises FormulaError with the position of the problem."""
    try:
        return Parser(text).formula()
    except RecursionError:
        raise FormulaError("stl: the formula has too many nested parentheses") from None


@dataclass(frozen=True)
class Linear:
    """A linear expression of signals."""

    terms: dict[Signal, float]
    constant: float

    def scaled(self, factor: float) -> Linear:
        return Linear({s: factor * c for s, c in self.terms.items()}, factor * self.constant)

    def plus(self, other: Linear, factor: float) -> Linear:
        """Return this expression plus `factor` times another."""
        terms = dict(self.terms)
        for signal, coefficient in other.terms.items():
            terms[signal] = terms.get(signal, 0.0) + factor * coefficient
        return Linear(terms, self.constant + factor * other.constant)

    def is_above(self, other: Linear, strict: bool) -> Predicate:
        difference = self.plus(other, -1.0)
        terms = tuple((s, c) for s, c in difference.terms.items())
        return Predicate(terms, difference.constant, strict)


class Parser:
    """A recursive-descent parser. Each method parses one level of precedence."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.tokens: list[tuple[str, str, int]] = []  # kind, text, position from 1
        self.positions: dict[Signal, int] = {}
        end = len(text.rstrip())
        while self.at < end:
            match = TOKEN.match(text, self.at)
            if match is None:
                start = self.at + len(text[self.at :]) - len(text[self.at :].lstrip())
                self.fail(start + 1, f"found {text[start]!r}, which formulas do not use")
            kind = str(match.lastgroup)
            self.tokens.append((kind, match[kind], match.start(kind) + 1))
            self.at = match.end()
        self.tokens.append(("end", "", end + 1))
        self.k = 0

    def fail(self, position: int, problem: str) -> NoReturn:
        raise FormulaError(f"stl, position {position}: {problem}")

    @property
    def position(self) -> int:
        return self.tokens[self.k][2]

    def has_next(self, *words: str) -> bool:
        """Return True if the next token is one of these marks or words."""
        kind, text, _ = self.tokens[self.k]
        return kind in ("mark", "name") and text in words

    def take(self) -> str:
        self.k += 1
        return self.tokens[self.k - 1][1]

    def accept(self, *words: str) -> str | None:
        return self.take() if self.has_next(*words) else None

    def expect(self, mark: str) -> None:
        if self.accept(mark) is None:
            self.fail(self.position, f"expected {mark}, found {self.excerpt()}")

    def excerpt(self) -> str:
        """Return the rest of the text, for an error message."""
        text = self.text[self.position - 1 :].strip()
        shown = text if len(text) <= EXCERPT else f"{text[:EXCERPT]}…"
        return repr(shown) if shown else "the end of the formula"

    def formula(self) -> Formula:
        position, value = self.position, self.implies()
        if self.tokens[self.k][0] != "end":
            self.fail(self.position, f"expected an operator, found {self.excerpt()}")
        return Formula(self.text, self.logical(value, position), self.positions)

    def logical(self, value: Node | Linear, position: int) -> Node:
        """Return `value` if it is a formula. Raises FormulaError if it is a number."""
        if isinstance(value, Linear):
            self.fail(position, "expected a formula, found a number. Compare it: x > 0")
        return value

    def linear(self, value: Node | Linear, position: int) -> Linear:
        """Return `value` if it is a number. Raises FormulaError if it is a formula."""
        if not isinstance(value, Linear):
            self.fail(position, "expected a number, found a formula. Join formulas with and, or")
        return value

    def implies(self) -> Node | Linear:
        position, left = self.position, self.chain("or", Or, self.conjunction)
        if self.accept("implies") is None:
            return left
        after, right = self.position, self.implies()  # a implies (b implies c)
        return Or((Not(self.logical(left, position)), self.logical(right, after)))

    def conjunction(self) -> Node | Linear:
        return self.chain("and", And, self.until)

    def chain(
        self,
        word: str,
        kind: Callable[[tuple[Node, ...]], Node],
        part: Callable[[], Node | Linear],
    ) -> Node | Linear:
        position, first = self.position, part()
        if not self.has_next(word):
            return first
        parts = [self.logical(first, position)]
        while self.accept(word) is not None:
            position = self.position
            parts.append(self.logical(part(), position))
        return kind(tuple(parts))

    def until(self) -> Node | Linear:
        position, left = self.position, self.unary()
        while self.accept("until") is not None:
            window, after = self.window(), self.position
            right = self.logical(self.unary(), after)
            left = Until(self.logical(left, position), right, window)
        return left

    def unary(self) -> Node | Linear:
        word = self.accept("not", *TEMPORAL)
        if word is None:
            return self.comparison()
        window, position = (Window() if word == "not" else self.window()), self.position
        part = self.logical(self.unary(), position)
        if word == "not":
            return Not(part)
        return Always(part, window) if word == "always" else Eventually(part, window)

    def window(self) -> Window:
        position = self.position
        if self.accept("[") is None:
            return Window()
        start = self.steps()
        self.expect(",")
        stop = None if self.accept("inf") else self.steps()
        self.expect("]")
        if stop is not None and stop < start:
            self.fail(position, f"the window [{start},{stop}] ends before it starts")
        return Window(start, stop)

    def steps(self) -> int:
        kind, text, position = self.tokens[self.k]
        if kind != "number" or not text.isdecimal():
            self.fail(position, f"expected a number of steps, 0 or more, found {self.excerpt()}")
        self.k += 1
        return int(text)

    def comparison(self) -> Node | Linear:
        position, left = self.position, self.sum()
        parts = []
        while (mark := self.accept("<", "<=", ">", ">=")) is not None:
            after = self.position
            here = self.linear(left, position)
            right = self.linear(self.sum(), after)
            pair = (right, here) if mark[0] == "<" else (here, right)
            predicate = pair[0].is_above(pair[1], strict=len(mark) == 1)
            if not any(coefficient for _, coefficient in predicate.terms):
                self.fail(position, "the comparison contains no signal")
            parts.append(predicate)
            left, position = right, after
        return left if not parts else parts[0] if len(parts) == 1 else And(tuple(parts))

    def sum(self) -> Node | Linear:
        position, value = self.position, self.product()
        while (mark := self.accept("+", "-")) is not None:
            after = self.position
            term = self.linear(self.product(), after)
            value = self.linear(value, position).plus(term, 1.0 if mark == "+" else -1.0)
        return value

    def product(self) -> Node | Linear:
        position, value = self.position, self.factor()
        while (mark := self.accept("*", "/")) is not None:
            after = self.position
            left, right = self.linear(value, position), self.linear(self.factor(), after)
            if mark == "/":
                if right.terms or right.constant == 0:
                    self.fail(after, "the divisor must be a number other than 0")
                value = left.scaled(1 / right.constant)
            elif left.terms and right.terms:
                self.fail(after, "a product of two signals is not linear. Multiply by a number")
            else:
                value = left.scaled(right.constant) if left.terms else right.scaled(left.constant)
        return value

    def factor(self) -> Node | Linear:
        kind, text, position = self.tokens[self.k]
        if self.accept("-"):
            after = self.position
            return self.linear(self.factor(), after).scaled(-1.0)
        if self.accept("("):
            value = self.implies()
            self.expect(")")
            return value
        if kind == "number":
            self.k += 1
            if not isfinite(float(text)):
                self.fail(position, f"{text} is too large")
            return Linear({}, float(text))
        if kind not in ("name", "quoted") or (kind == "name" and text in WORDS):
            self.fail(position, f"expected a signal or a number, found {self.excerpt()}")
        self.k += 1
        signal = Signal(text, self.index() if self.accept("[") else None)
        self.positions.setdefault(signal, position)
        return Linear({signal: 1.0}, 0.0)

    def index(self) -> int:
        index = self.steps()
        self.expect("]")
        return index
