"""Loops inside an update: equal to Python loops, with one node in the graph for any length."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, grad_and_value, vmap
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from offline_rl.algorithms.common.base import Algorithm, Metrics, Network, State
from offline_rl.algorithms.common.optim import Adam
from offline_rl.algorithms.common.scan import scan
from offline_rl.data.dataset import Dataset
from offline_rl.engine.cost import count_cost
from offline_rl.engine.engine import Engine
from offline_rl.engine.trace import trace
from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer
from offline_rl.utils import hardware
from offline_rl.utils.random import Random
from policies import Spec
from policies.networks.mlp import MLP

Scan = Callable[[Callable[[Any, Any], Any], Any, Any], Any]


def python_loop(body: Callable[[Any, Any], Any], carry: Any, xs: Any) -> Any:
    leaves, tree = tree_flatten(xs)
    ys = []
    for i in range(len(leaves[0])):
        carry, y = body(carry, tree_unflatten([x[i] for x in leaves], tree))
        ys.append(y)
    return carry, tree_map(lambda *y: torch.stack(y), *ys)


class Double(torch.autograd.Function):
    """A function with a gradient of its own, which is not its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


def loss(loop: Scan, params: dict[str, Tensor], h: Tensor, xs: Tensor) -> Tensor:
    """Return a loss with each kind of carry, x, y and gradient."""
    frozen = torch.linspace(0, 1, h.shape[-1], dtype=h.dtype)
    parity = torch.arange(len(xs)) % 2

    def body(carry: Any, x: Any) -> Any:
        x, odd = x
        new = torch.tanh(carry["h"] @ params["w"] + x + frozen) * Double.apply(params["scale"])
        with torch.no_grad():
            stopped = new * params["scale"]
        new = torch.where(odd > 0, new, new + 0.5 * (carry["h"].detach() * stopped))
        carry = {"h": new, "odd_steps": carry["odd_steps"] + odd, "constant": carry["constant"]}
        return carry, (new[:, 0], carry["odd_steps"])

    start = {"h": h, "odd_steps": torch.zeros((), dtype=torch.int64), "constant": h[0].exp()}
    last, (y, odd_steps) = loop(body, start, (xs, parity))
    weights = 1 + odd_steps.to(h.dtype)
    return (y.square() * weights[:, None]).mean() + (last["h"] * last["constant"]).sum()


def operands(length: int = 6) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"w": (5, 5), "scale": (5,), "h": (4, 5), "xs": (length, 4, 5)}
    made = {k: torch.randn(v, generator=draw, dtype=torch.float64) for k, v in shapes.items()}
    return {"w": made["w"], "scale": made["scale"]}, made["h"], made["xs"]


WAYS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "value": lambda f: f,
    "gradient": lambda f: grad_and_value(f, argnums=(0, 1, 2)),
    "gradient of parameters": grad,
    "seeds": lambda f: vmap(grad_and_value(f, argnums=(0, 1, 2))),
    "seeds with the same data": lambda f: vmap(grad_and_value(f), in_dims=(0, None, None)),
    "samples within the loss": lambda f: grad_and_value(
        lambda *x: vmap(lambda h: f(x[0], h, x[2]))(torch.stack([x[1], x[1].sin()])).sum(),
        argnums=(0, 1, 2),
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_values_and_gradients_equal_those_of_a_python_loop(way: str) -> None:
    arguments: Any = operands()
    if way.startswith("seeds"):
        stacked = tree_map(lambda x: torch.stack([x, 0.5 * x, x.sin()]), arguments)
        arguments = stacked if way == "seeds" else (stacked[0], *arguments[1:])
    results = []
    for loop in (python_loop, scan):
        function = WAYS[way](lambda *x, loop=loop: loss(loop, *x))
        with torch.no_grad():
            results.append(tree_leaves(trace(function, *arguments)(*arguments)))
            untraced = tree_leaves(function(*arguments))
        torch.testing.assert_close(untraced, results[0])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_a_geometric_sum() -> None:
    """h = 1 + a + … + a**(H - 1), and its derivative."""

    def last(a: Tensor) -> Tensor:
        return scan(lambda h, x: (a * h + x, ()), torch.zeros((), dtype=a.dtype), ones)[0]

    a, ones = torch.tensor(0.9, dtype=torch.float64), torch.ones(20, dtype=torch.float64)
    gradient, value = trace(grad_and_value(last), a)(a)
    assert value.item() == pytest.approx(sum(0.9**k for k in range(20)))
    assert gradient.item() == pytest.approx(sum(k * 0.9 ** (k - 1) for k in range(1, 20)))


def test_a_loop_within_a_loop() -> None:
    def nested(loop: Scan, w: Tensor, h: Tensor, xs: Tensor) -> Tensor:
        def outer(h: Tensor, x: Tensor) -> Any:
            inner = loop(lambda g, z: (torch.tanh(g @ w + z * h), g.sum()), h, x)
            return inner[0] + x[0], inner[1]

        h, y = loop(outer, h, xs)
        return h.sum() + y.square().sum()

    params, h, _ = operands()
    arguments = params["w"], h, torch.randn(3, 2, 4, 5, dtype=h.dtype)
    stacked = tree_map(lambda x: torch.stack([x, 0.5 * x]), arguments)
    results = []
    for loop in (python_loop, scan):
        function = vmap(grad_and_value(lambda *x, loop=loop: nested(loop, *x), argnums=(0, 1, 2)))
        results.append(tree_leaves(trace(function, *stacked)(*stacked)))
    torch.testing.assert_close(*results)


def test_the_body_may_differentiate_with_respect_to_other_tensors() -> None:
    """The product of v and the second derivatives of sum p^4, 12 p^2 v, three times."""
    p, v = torch.tensor([[0.5, 1.0], [2.0, -1.0]]), torch.ones(2)

    def result(p: Tensor) -> Tensor:
        def body(v: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            first = grad(lambda q: (q**4).sum())
            return x * grad(lambda q: (first(q) * v).sum())(p.view_as(p)), x

        carry: Tensor = scan(body, v, torch.tensor([1.0, 0.5, 0.25]))[0]
        return carry

    expected = 12**3 * p**6 / 8
    assert torch.allclose(result(p[0]), expected[0])
    assert torch.allclose(trace(vmap(result), p)(p), expected)
    assert torch.allclose(trace(result, p[1])(p[1]), expected[1])


def test_the_body_is_traced_once_and_its_cost_is_counted_for_every_step() -> None:
    calls, nodes, costs = list[int](), list[int](), list[float]()
    for length in (5, 50):
        params, h, xs = operands(length)
        count = 0

        def counted(body: Any, carry: Any, xs: Any) -> Any:
            def call(*x: Any) -> Any:
                nonlocal count
                count += 1
                return body(*x)

            return scan(call, carry, xs)

        graph = trace(grad_and_value(lambda *x, f=counted: loss(f, *x)), params, h, xs)
        graph.graph.eliminate_dead_code()
        cost = count_cost(graph, 1)
        assert cost.matmuls == 3 * length
        assert cost.flops == cost.matmuls * 2 * 4 * 5 * 5
        calls.append(count)
        nodes.append(len(graph.graph.nodes))
        costs.append(cost.calls)
    assert calls[0] == calls[1]
    assert nodes[0] == nodes[1]
    assert costs[1] > 8 * costs[0]


def hidden_product(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return 2 * x


def test_what_a_loop_cannot_do_is_refused() -> None:
    _, h, xs = operands()
    random = Random(torch.tensor(0), torch.tensor(0))

    def refused(match: str, body: Any, carry: Any = h, steps: Any = xs) -> None:
        with pytest.raises((ValueError, RuntimeError), match=match):
            trace(grad(lambda h: scan(body, carry, steps)[0].sum() + h.sum()), h)

    refused("from .4, 5. torch.float64 to .4, 1. torch.float64", lambda c, x: (c[:, :1], x))
    refused("from .* to .4, 5. torch.float32", lambda c, x: (c.float(), x))
    refused("structure of the carry", lambda c, x: ((c, x), x))
    refused("at least one tensor", lambda c, x: (c, x), 0.0)
    refused(r"\[5, 6\] steps", lambda c, x: (c, x[0]), h, (xs, xs[1:]))
    refused(r"\[0\] steps", lambda c, x: (c, x), h, xs[:0])
    refused("Draw them before the loop", lambda c, x: (c + random.normal(c.shape), x))
    refused("invisible", lambda c, x: (c + hidden_product(h), x))
    first = grad(lambda h: scan(lambda c, x: (c**3 + x, x), h, xs)[0].sum())
    with pytest.raises(RuntimeError, match="second derivatives"):
        trace(grad(lambda h: first(h).sum()), h)


SPEC = Spec((3,), 2)


@dataclass(frozen=True)
class WorldModelConfig:
    discount: float = 0.9
    length: int = 5


class WorldModel(Algorithm):
    """One loss through encoder, recurrent cell and policy, over imagined steps."""

    Config: ClassVar[type] = WorldModelConfig
    loop: ClassVar[Any] = staticmethod(scan)

    def networks(self) -> dict[str, nn.Module]:
        return {
            "encoder": MLP(3, 8, (8,)),
            "cell": nn.GRUCell(2 + 8, 8),
            "policy": MLP(8, 2, (8,)),
        }

    def optimizers(self) -> dict[str, Adam]:
        return {}

    def update(self, state: State, batch: Batch, i: int) -> tuple[State, Metrics]:
        rows = len(batch.actions)
        noise = state.random.normal((self.cfg.length, rows, 8))

        def loss(params: Any) -> Tensor:
            encoder, cell, policy = (Network(self.modules[k], params[k]) for k in self.modules)

            def body(h: Tensor, noise: Tensor) -> Any:
                action = policy(h).tanh()
                h = cell(torch.cat([action, 0.1 * noise], -1), h)
                return h, (h, action)

            _, (h, actions) = self.loop(body, encoder(batch.observations), noise)
            return (h[..., 0] - batch.rewards).square().mean() + 0.1 * actions.square().mean()

        grads, value = grad_and_value(loss)(state.params)
        params = tree_map(lambda p, g: p - 0.1 * g, state.params, grads)
        return replace(state, params=params), {"loss": value}


class Unrolled(WorldModel):
    loop: ClassVar[Any] = staticmethod(python_loop)


def run(
    kind: type[Algorithm], seeds: list[int], **options: Any
) -> tuple[list[dict[str, Tensor]], np.ndarray]:
    """Return the final state of each seed after three updates, and the mean losses."""
    draw = np.random.default_rng(0)
    columns = draw.normal(size=(40, 3)), draw.uniform(-1, 1, (40, 2)), draw.normal(size=40)
    source = ReplayBuffer.from_dataset(Dataset.from_arrays(*columns, np.arange(40) % 20 == 19))
    spec, cfg = SPEC, kind.Config()
    engine = Engine(lambda _: kind(spec, cfg), seeds, source, batch_size=6, **options)
    engine.run(3)
    assert not engine.fallbacks
    return list(engine.seed_states()), engine.metrics()["loss"]


def test_a_world_models_loss_trains_all_its_networks_for_one_seed_and_for_stacked_seeds() -> None:
    stacked, losses = run(WorldModel, [3, 4])
    for s, seed in enumerate((3, 4)):
        for kind in (WorldModel, Unrolled):
            (single,), loss = run(kind, [seed])
            torch.testing.assert_close(stacked[s], single, rtol=1e-4, atol=1e-6)
            assert losses[s] == pytest.approx(loss[0], rel=1e-4)
    initial = WorldModel(SPEC, WorldModelConfig()).initial()["params"]
    assert {name.split("/")[1] for name in stacked[0] if name.startswith("params/")} == {*initial}
    assert all(
        not torch.equal(x, y)
        for (name, x), y in zip(stacked[0].items(), stacked[1].values(), strict=True)
        if name.startswith("params/")
    )


@pytest.mark.slow
@pytest.mark.skipif(hardware.missing_compiler() is not None, reason="needs a C++ compiler")
@pytest.mark.parametrize("seeds", [[3], [3, 4]])
def test_a_compiled_loop_equals_an_uncompiled_one_and_repeats_to_the_bit(seeds: list[int]) -> None:
    expected, _ = run(WorldModel, seeds)
    compiled, _ = run(WorldModel, seeds, compile=True)
    again, _ = run(WorldModel, seeds, compile=True)
    torch.testing.assert_close(compiled, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(again, compiled, rtol=0, atol=0)
