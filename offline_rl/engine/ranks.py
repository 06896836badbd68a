"""Data parallelism: the processes of one torchrun command, called ranks, train one policy together.

Each rank computes the gradients of its slice of every batch. The gradients are averaged, and all
ranks take the same optimizer step. Rank 0 alone evaluates, prints and writes; after an interruption
it reads the checkpoint and sends it to the others.

This module is imported only if torchrun has started several processes.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from offline_rl.utils.errors import SharedError, UserError
from offline_rl.utils.random import SlicedRandom
from offline_rl.utils.trees import to_json_values

TIMEOUT = timedelta(days=7)  # the other ranks wait while rank 0 evaluates
REMEDY = "Start all ranks with the same command, versions and data."


@contextmanager
def exchange() -> Iterator[None]:
    """Raise a SharedError if another rank ends during an exchange in the block."""
    try:
        yield
    except RuntimeError as error:  # gloo has no error class of its own
        raise SharedError(
            f"rank {dist.get_rank()} stops, because another rank has ended. Repeat the command to "
            "continue from the newest checkpoint."
        ) from error


@torch.library.custom_op("offline_rl::average", mutates_args=())
def average(x: Tensor) -> Tensor:
    """Return the mean of `x` over all ranks. It is one operator in the graph of an update."""
    total = x.clone()
    with exchange():
        dist.all_reduce(total)
    return total / dist.get_world_size()


@average.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Ranks:
    """The ranks of a torchrun command, from the side of one of them."""

    def __init__(self, rank: int, world_size: int) -> None:
        """Store the index of this rank and the number of ranks."""
        self.rank, self.world_size = rank, world_size
        self.in_session = False
        self.agreed = False  # True once all ranks have passed `agree` without an error

    def random(self, seed: Tensor, update: Tensor) -> SlicedRandom:
        """Return the random numbers of this rank's slice of a batch."""
        return SlicedRandom(seed, update, self.rank, self.world_size)

    def average(self, tree: Any) -> Any:
        """Return the mean over ranks of each tensor in a tree, with one all-reduce."""
        leaves, structure = tree_flatten(tree)
        mean = torch.ops.offline_rl.average(torch.cat([x.detach().reshape(-1) for x in leaves]))
        parts = mean.split([x.numel() for x in leaves])
        means = [part.view(x.shape) for part, x in zip(parts, leaves, strict=True)]
        return tree_unflatten(means, structure)

    def largest(self, value: int) -> int:
        """Return the largest `value` of all ranks."""
        values = torch.tensor([int(value)])
        with exchange():
            dist.all_reduce(values, op=dist.ReduceOp.MAX)
        return int(values)

    def any(self, flag: Callable[[], bool]) -> Callable[[], bool]:
        """Return a function that is True on all ranks if `flag()` is True on one of them."""
        return lambda: bool(self.largest(flag()))

    def gather(self, value: Any) -> list[Any]:
        """Return the `value` of each rank. Values are sent as JSON."""
        content = bytearray(json.dumps(to_json_values(value)).encode())
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
        with exchange():
            dist.all_gather(sizes, torch.tensor([len(content)]))
            longest = max(map(int, sizes))
            padded = torch.frombuffer(content.ljust(longest), dtype=torch.uint8)
            texts = [torch.empty_like(padded) for _ in sizes]
            dist.all_gather(texts, padded)
        return [
            json.loads(bytes(text[: int(size)].tolist()))
            for text, size in zip(texts, sizes, strict=True)
        ]

    def share(self, value: Any) -> Any:
        """Return the `value` of rank 0, as JSON. The other ranks pass any value."""
        return self.gather(value if self.rank == 0 else None)[0]

    def copy_from_first(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors of rank 0 into those of the other ranks."""
        with exchange():
            for x in tensors.values():
                dist.broadcast(x, 0)

    def agree(self, facts: Mapping[str, Any], error: str | None = None) -> None:
        """Raise a SharedError if a rank has an error or if the `facts` of the ranks differ."""
        reports = self.gather({"facts": facts, "error": error})
        errors = [report["error"] for report in reports]
        for rank, message in enumerate(errors):
            if message is not None:
                alone = len(set(errors)) > 1
                raise SharedError(f"rank {rank}: {message}" if alone else message)
        if difference := first_difference([report["facts"] for report in reports]):
            raise SharedError(difference)
        self.agreed = True

    def check_equal(self, tensors: Mapping[str, Tensor], moment: object) -> None:
        """Raise a SharedError if the checksum of a tensor differs between ranks.

        moment: time of the check, for the message.
        """
        sums = torch.stack([x.contiguous().view(torch.int32).sum() for x in tensors.values()])
        first, *others = self.gather(sums.tolist())
        for rank, other in enumerate(others, 1):
            for name, expected, actual in zip(tensors, first, other, strict=True):
                if actual != expected:
                    raise SharedError(
                        f"ranks 0 and {rank} differ in {name} after {moment}, because their "
                        "machines round differently. Use equal machines, or compile=never."
                    )


def first_difference(facts: list[Mapping[str, Any]]) -> str | None:
    """Return a description of the first fact that differs from rank 0; None if none does."""
    for rank, other in enumerate(facts):
        for name in [*facts[0], *other]:
            mine, first = other.get(name), facts[0].get(name)
            if mine != first:
                return f"rank {rank} has {name}={mine}, but rank 0 has {name}={first}. {REMEDY}"
    return None


@cache
def join() -> Ranks:
    """Connect the ranks of this torchrun command. Raises UserError."""
    if not dist.is_available():
        raise UserError("This build of PyTorch has no torch.distributed. Start without torchrun.")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if not dist.is_initialized():
        try:
            dist.init_process_group(backend, timeout=TIMEOUT)
        except (RuntimeError, ValueError) as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise UserError(
                f"rank {os.environ['RANK']} cannot connect to the other ranks at {address} "
                f"({error}). Check torchrun's --nnodes and --rdzv-endpoint."
            ) from error
        atexit.register(leave)
    return Ranks(dist.get_rank(), dist.get_world_size())


def leave() -> None:
    """Close the connections to the other ranks."""
    with suppress(Exception):
        dist.destroy_process_group()


@contextmanager
def session() -> Iterator[Ranks]:
    """Run one command on all ranks. Only rank 0 prints.

    An error that occurs before all ranks have passed `agree` is raised on all ranks. A nested
    session is part of the outer session.
    """
    ranks = join()
    if ranks.in_session:
        yield ranks
        return
    ranks.in_session, ranks.agreed = True, False
    try:
        with ExitStack() as opened:
            if ranks.rank:
                nowhere = opened.enter_context(open(os.devnull, "w"))
                opened.enter_context(redirect_stdout(nowhere))
            yield ranks
    except SharedError:
        raise
    except UserError as error:
        if not ranks.agreed:
            ranks.agree({}, str(error))
        if ranks.rank == 0:
            raise
        raise UserError(f"rank {ranks.rank}: {error}") from error
    finally:
        ranks.in_session = False
