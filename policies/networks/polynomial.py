"""Library of polynomial terms, for models and policies that are linear in these terms.

This module imports torch only to evaluate a library, so the numpy runtime can read the terms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations_with_replacement
from math import comb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Term = tuple[int, ...]  # indices of the inputs that are multiplied; () is the constant 1


@dataclass(frozen=True)
class Library:
    """T terms: polynomials of the state s [O], the actions a [A], and products of both.

    The order is: the constant, polynomials of s by degree, the actions, and all products of a
    polynomial and an action. The polynomials are those of pysindy's `PolynomialLibrary`, in its
    order.
    """

    observations: int  # O
    actions: int = 0  # A
    degree: int = 2  # highest degree of the polynomials of s
    interactions: bool = True  # products of different states; False: only powers of a single state
    products: bool = True  # products of the polynomials with each action
    constant: bool = False  # the term 1

    @cached_property
    def terms(self) -> tuple[Term, ...]:
        """The terms, of length T. The inputs are the states, then the actions."""
        states = tuple(self._polynomials())
        actions = tuple((self.observations + k,) for k in range(self.actions))
        mixed = tuple(s + a for s in states for a in actions) if self.products else ()
        return (((),) if self.constant else ()) + states + actions + mixed

    @property
    def num_terms(self) -> int:
        """The number of terms T, without making them: there may be too many for the memory."""
        states = self.observations * self.degree
        if self.interactions:
            states = comb(self.observations + self.degree, self.degree) - 1
        mixed = states * self.actions if self.products else 0
        return self.constant + states + self.actions + mixed

    @cached_property
    def factors(self) -> list[list[int]]:
        """Indices of inputs, [F, T]: a term is the product of the inputs in its column.

        Index O + A stands for an additional input, which is always 1.
        """
        one, width = self.observations + self.actions, max(map(len, self.terms), default=0)
        return [[term[k] if k < len(term) else one for term in self.terms] for k in range(width)]

    def names(
        self, observation_names: Sequence[str] = (), action_names: Sequence[str] = ()
    ) -> list[str]:
        """Return readable names of the terms, such as `s_1 s_2^2`.

        observation_names, action_names: names of the inputs; default s_1, s_2, … and a_1, a_2, ….
        """
        inputs = [*(observation_names or [f"s_{k + 1}" for k in range(self.observations)])]
        inputs += action_names or [f"a_{k + 1}" for k in range(self.actions)]
        counts = [Counter(term) for term in self.terms]
        return [
            " ".join(inputs[k] + (f"^{power}" if power > 1 else "") for k, power in count.items())
            or "1"
            for count in counts
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the terms [..., T] of x = [s, a], [..., O + A]."""
        import torch

        padded = torch.cat([x, torch.ones_like(x[..., :1])], -1)
        theta = torch.ones_like(x[..., :1])
        for column in self.factors:
            index = torch.tensor(column, device=x.device)
            theta = theta * padded.index_select(-1, index)
        return theta

    def _polynomials(self) -> Iterator[Term]:
        for degree in range(1, self.degree + 1):
            if self.interactions:
                yield from combinations_with_replacement(range(self.observations), degree)
            else:
                yield from ((k,) * degree for k in range(self.observations))


def format_sum(coefficients: Sequence[float], names: Sequence[str], digits: int = 4) -> str:
    """Return a sum of terms, such as `+0.2 s_1 -3 s_2^2`, without terms whose coefficient is 0.

    coefficients, names: one per term.  digits: significant digits.
    """
    pairs = zip(coefficients, names, strict=True)
    terms = [f"{c:+.{digits}g}" + (f" {name}" if name != "1" else "") for c, name in pairs if c]
    return " ".join(terms) or "0"
