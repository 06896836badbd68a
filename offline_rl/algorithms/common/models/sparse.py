"""Sparse dynamics (SINDy): changes of the state and rewards as short sums of polynomial terms.

Each member of an ensemble has a bootstrap sample of the rows (bagging), and leaves out some random
terms. It is fitted by sequentially thresholded least squares (STLSQ): ridge regression and removal
of small coefficients, repeated, and finally a least-squares fit of the remaining terms. The fit is
computed in float64 and never waits for the device. It reads the data in chunks and stores only
sums of products (Gram matrices).

SINDy: Brunton, Proctor and Kutz, PNAS 2016, arXiv:1509.03580; ensembles: Fasel et al., 2022,
arXiv:2111.10992; in reinforcement learning: Zolman et al., arXiv:2403.09110 (nzolman/sindy-rl).
Differs: from dynamicslab/pysindy with `normalize_columns`: targets are normalized too, so ridge and
         threshold do not depend on units. From SINDy-RL: changes of the state are fitted instead of
         next states. Its terms are not normalized, and its ridge is 5e-5 for 8,000 rows; 1e-8 of
         normalized terms is similar. Its rollouts use the median of the members' coefficients
         instead of members.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isqrt
from typing import Annotated, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from offline_rl.algorithms.common.config import BUILT
from offline_rl.algorithms.common.scan import scan
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import Checked, Count, NonNegative, Positive, Range, frozen
from offline_rl.utils.random import Random
from policies.networks.mlp import select_members
from policies.networks.polynomial import Library, format_sum

Carry = TypeVar("Carry")
CHUNK = 2**23  # limit on rows * terms * members of one chunk (64 MiB)
SYSTEMS = 2**25  # limit on the entries of linear systems that are solved together (256 MiB)
MAX_GRAM = 2**29  # bytes of the Gram matrices of all members; a fit needs several times as much
JITTER = 1e-12  # ridge of the last fit, so that it has a solution if terms are proportional
MIN_VARIANCE = 1e-12  # lower bound on the variance of residuals, which may be 0


@frozen
class SparseOptions(Checked):
    """Options of the library and of its fit. Defaults: SINDy-RL's for cart-pole swing-up."""

    degree: Annotated[int, Range(1), BUILT] = 2  # highest degree of the polynomials of the state
    interactions: Annotated[bool, BUILT] = True  # include products of different states
    products: Annotated[bool, BUILT] = True  # include products of the polynomials with each action
    constant: Annotated[bool, BUILT] = False  # include the constant term
    members: Annotated[int, Range(1), BUILT] = 20  # number of fits in the ensemble
    # True: ridge and threshold apply to the coefficients of terms and targets that are scaled to
    # length 1. False: they apply to the coefficients themselves (SINDy-RL).
    normalize_terms: Annotated[bool, BUILT] = True  # scale terms and targets to length 1
    ridge: Positive = 1e-8  # weight of the L2 penalty on the coefficients during thresholding
    threshold: NonNegative = 7e-3  # coefficients with a smaller absolute value become 0
    max_iter: Count = 20  # iterations of ridge regression and thresholding
    drop_terms: Annotated[int, Range(0), BUILT] = 1  # random terms that each member leaves out

    def library(self, observations: int, actions: int) -> Library:
        """Return the library. Raise UserError if its fit would need too much memory."""
        sizes = self.degree, self.interactions, self.products, self.constant
        library = Library(observations, actions, *sizes)
        check_size(library, self.members)
        return library


def check_size(library: Library, members: int) -> None:
    """Raise UserError if the Gram matrices [E, T, T] of a fit need too much memory."""
    terms, most = library.num_terms, isqrt(MAX_GRAM // (8 * members))
    if terms > most:
        fewer = "interactions=false, products=false" if library.actions else "interactions=false"
        count = f"{terms:,}" if terms < 10**12 else "more than 10^12"
        raise UserError(
            f"The polynomials have {count} terms, and the fit of {members} members has memory for "
            f"{most:,}. Use a lower algorithm.degree, {fewer}, or fewer members."
        )


class SparseDynamics(nn.Module):
    """E sparse polynomial models of (change of the state, reward), which `solve` fits."""

    def __init__(self, observations: int, actions: int, options: SparseOptions) -> None:
        super().__init__()
        self.library = options.library(observations, actions)
        outputs = observations + 1
        shape = options.members, len(self.library.terms), outputs
        self.coefficients = nn.Parameter(torch.zeros(shape))
        self.log_variance = nn.Parameter(torch.zeros(outputs))  # of the residuals

    def forward(self, x: Tensor, *, members: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return mean and log variance, [E, ..., O + 1], for x = [s, a], [..., O + A].

        members: [K], indices of the members to evaluate; the results are then [K, ..., O + 1].
        """
        theta = self.library(x)
        chosen = select_members(self.coefficients, members)
        flat = theta.reshape(-1, theta.shape[-1]) @ chosen  # [E, R, O + 1]
        mean = flat.reshape(len(flat), *x.shape[:-1], flat.shape[-1])
        return mean, self.log_variance.expand_as(mean)

    def median(self) -> Tensor:
        """Return the median of the members' coefficients, [T, O + 1]."""
        return median(self.coefficients)


class Gram(NamedTuple):
    """Sums of products over the rows of each member. A fit needs nothing else of the data."""

    terms: Tensor  # [E, T, T] float64, of pairs of terms
    cross: Tensor  # [E, T, Y] float64, of terms and targets
    squares: Tensor  # [E, Y] float64, of targets


def solve(
    x: Tensor, y: Tensor, random: Random, options: SparseOptions, count: Tensor | None = None
) -> dict[str, Tensor]:
    """Return the parameters of a `SparseDynamics` that fit y.

    x: [N, O + A], states and actions.  y: [N, O + 1], changes of the state, and rewards.  count:
    0-d, the number of rows before the padding, which repeats them. Raises UserError if there are no
    rows, or too many terms.
    """
    outputs = y.shape[-1]
    library = options.library(outputs - 1, x.shape[-1] - outputs + 1)
    rows, terms = len(x), len(library.terms)
    if not rows:
        raise UserError("The sparse model has no rows to fit. Use a data set with transitions.")
    bags = random.integers(rows if count is None else count, (options.members, rows))
    keep = draw_terms(random, options.members, terms, options.drop_terms)
    gram = gram_matrices(library, x, y, bags)
    fit = threshold_least_squares(
        gram,
        keep,
        options.ridge,
        options.threshold,
        normalize=options.normalize_terms,
        max_iter=options.max_iter,
    )
    variance = residual_variance(library, x, y, fit).clamp(min=MIN_VARIANCE)
    return {"coefficients": fit.float(), "log_variance": variance.log().float()}


def draw_terms(random: Random, members: int, terms: int, drop: int) -> Tensor:
    """Return a mask of the terms that each member uses, [E, T]: all but `drop` random ones."""
    rank = random.uniform((members, terms)).argsort(-1).argsort(-1)
    return rank >= min(drop, terms - 1)


def gram_matrices(library: Library, x: Tensor, y: Tensor, bags: Tensor) -> Gram:
    """Return the sums of products over the rows `bags` [E, R] of x [N, O + A] and y [N, Y]."""
    members, targets, terms = len(bags), y.shape[-1], len(library.terms)

    def add(gram: Gram, index: Tensor) -> tuple[Gram, Tensor]:
        theta, target = library(x[index].double()), y[index].double()  # [E, C, T], [E, C, Y]
        transposed = theta.transpose(-1, -2)
        sums = transposed @ theta, transposed @ target, target.square().sum(-2)
        return Gram(*(a + b for a, b in zip(gram, sums, strict=True))), index[0, 0]

    shapes = (members, terms, terms), (members, terms, targets), (members, targets)
    empty = Gram(*(torch.zeros(s, dtype=torch.float64, device=x.device) for s in shapes))
    return _over_chunks(add, empty, bags, max(1, CHUNK // (members * terms)))


def threshold_least_squares(
    gram: Gram,
    keep: Tensor,
    ridge: float | Tensor,
    threshold: float | Tensor,
    *,
    normalize: bool = True,
    max_iter: int = 20,
) -> Tensor:
    """Return the coefficients of each member, [E, T, Y] float64, by STLSQ.

    keep: [E, T] bool, the terms that a member uses.  normalize: ridge and threshold apply to the
    coefficients of terms and targets that are scaled to length 1. The result is not scaled.
    """
    length = gram.terms.diagonal(dim1=-2, dim2=-1).sqrt()[:, None]  # [E, 1, T]
    target_length = gram.squares.sqrt()[..., None]  # [E, Y, 1]
    support = (keep[:, None] & (length > 0)).expand(*gram.squares.shape, -1)  # [E, Y, T]
    length, target_length = (torch.where(x > 0, x, 1) for x in (length, target_length))
    a = gram.terms / (length.transpose(-1, -2) * length)
    b = gram.cross.transpose(-1, -2) / (target_length * length)
    penalty, least = torch.full_like(length, 1) * ridge, torch.full_like(b, 1) * threshold
    if not normalize:
        penalty, least = penalty / length.square(), least * length / target_length
    size = max(1, SYSTEMS // a.numel())  # targets per part
    parts = zip(b.split(size, 1), support.split(size, 1), least.split(size, 1), strict=True)
    fits = [_fit(a, b, kept, minimum, penalty, max_iter) for b, kept, minimum in parts]
    return (torch.cat(fits, 1) * target_length / length).transpose(-1, -2)


def _fit(
    a: Tensor, b: Tensor, support: Tensor, least: Tensor, ridge: Tensor, max_iter: int
) -> Tensor:
    """Return the coefficients [E, Y, T] of normalized terms and targets.

    a: [E, T, T].  b, support, least: [E, Y, T].  ridge: [E, 1, T].
    """
    for _ in range(max_iter):
        coefficients = _solve(_cholesky(a, support, ridge), b * support)
        support = support & (coefficients.abs() >= least)
    # A small ridge keeps the last fit solvable; the second solution corrects the bias of the first.
    factor = _cholesky(a, support, JITTER)
    first = _solve(factor, b * support)
    residual = (b - (a[:, None] @ first[..., None])[..., 0]) * support
    return first + _solve(factor, residual)


def _cholesky(a: Tensor, support: Tensor, ridge: float | Tensor) -> Tensor:
    """Return the factors [E, Y, T, T] of a + ridge on the support, and of 1 elsewhere."""
    mask = support.to(a.dtype)  # [E, Y, T]
    system = a[:, None] * mask[..., :, None] * mask[..., None, :]
    system = system + torch.diag_embed(ridge * mask + (1 - mask))
    return torch.linalg.cholesky_ex(system)[0]  # unlike `cholesky`, it does not wait for a GPU


def _solve(factor: Tensor, b: Tensor) -> Tensor:
    """Solve L L^T x = b, [..., T]. `cholesky_solve` of a batch cannot be captured on a GPU."""
    x = torch.linalg.solve_triangular(factor, b[..., None], upper=False)
    return torch.linalg.solve_triangular(factor.mT, x, upper=True)[..., 0]


def residual_variance(library: Library, x: Tensor, y: Tensor, coefficients: Tensor) -> Tensor:
    """Return the mean squared residual [Y] float64 over rows and members."""

    def add(total: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        prediction = library(x[index[0]].double()) @ coefficients  # [E, C, Y]
        error = (y[index[0]].double() - prediction).square()
        return total + error.sum((0, 1)), index[0, 0]

    members, terms, targets = coefficients.shape
    total = torch.zeros(targets, dtype=torch.float64, device=x.device)
    rows = torch.arange(len(x), device=x.device)[None]
    total = _over_chunks(add, total, rows, max(1, CHUNK // (terms + members * targets)))
    return total / (members * len(x))


def _over_chunks(
    add: Callable[[Carry, Tensor], tuple[Carry, Tensor]], carry: Carry, rows: Tensor, size: int
) -> Carry:
    """Return `carry` after `carry, _ = add(carry, chunk)` for chunks [E, size] of rows [E, R]."""
    count, rest = divmod(rows.shape[1], size)
    if count:
        chunks = rows[:, : count * size].unflatten(1, (count, size)).movedim(1, 0)
        carry, _ = scan(add, carry, chunks)
    if rest:
        carry, _ = add(carry, rows[:, count * size :])
    return carry


def median(coefficients: Tensor) -> Tensor:
    """Return the median over members [E, ...]; of an even number, the mean of the middle two."""
    ordered = coefficients.sort(0).values
    members = len(ordered)
    return (ordered[(members - 1) // 2] + ordered[members // 2]) / 2


def equations(
    coefficients: Tensor,
    library: Library,
    observation_names: Sequence[str] = (),
    action_names: Sequence[str] = (),
    digits: int = 4,
) -> list[str]:
    """Return one equation per output, such as `d position_1 = +0.2 velocity_1`.

    coefficients: [T, O + 1], of the changes of the state and the reward.  digits: significant
    digits.
    """
    names = library.names(observation_names, action_names)
    states = observation_names or [f"s_{k + 1}" for k in range(library.observations)]
    left = [*(f"d {name}" for name in states), "reward"]
    columns = coefficients.T.tolist()
    return [f"{x} = {format_sum(c, names, digits)}" for x, c in zip(left, columns, strict=True)]
