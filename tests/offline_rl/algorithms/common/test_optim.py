"""Adam and its schedules against torch's, step by step."""

import pytest
import torch
from torch.func import vmap

from offline_rl.algorithms.common.optim import Adam, cosine, warm_up


def problem() -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Return parameters, and twenty gradients whose sizes span five orders of magnitude."""
    torch.manual_seed(0)
    params = {"weight": torch.randn(4, 3), "bias": torch.randn(3)}
    sizes = torch.logspace(-4, 1, 20)
    return params, [{k: size * torch.randn_like(v) for k, v in params.items()} for size in sizes]


def torch_result(optimizer, params, gradients, *, max_grad_norm=None, schedule=None):
    """Return the parameters after the steps of torch's optimizer, in float64."""
    leaves = {k: v.double().requires_grad_() for k, v in params.items()}
    adam = optimizer(leaves.values())
    scheduler = schedule and schedule(adam)
    for gradient in gradients:
        for name, leaf in leaves.items():
            leaf.grad = gradient[name].double()
        if max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(leaves.values(), max_grad_norm)
        adam.step()
        if scheduler:
            scheduler.step()
    return {k: v.detach().float() for k, v in leaves.items()}


def adam_result(adam, params, gradients):
    state = adam.init(params)
    for gradient in gradients:
        params, state = adam.step(params, gradient, state)
    return params, state


@pytest.mark.parametrize(
    ("adam", "optimizer", "extras"),
    [
        (Adam(1e-2), lambda p: torch.optim.Adam(p, 1e-2), {}),
        (
            Adam(1e-2, beta1=0.5, beta2=0.9, eps=1e-3),
            lambda p: torch.optim.Adam(p, 1e-2, (0.5, 0.9), 1e-3),
            {},
        ),
        (Adam(1e-2, weight_decay=0.1), lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1), {}),
        (
            Adam(1e-2, max_grad_norm=0.5),
            lambda p: torch.optim.Adam(p, 1e-2),
            {"max_grad_norm": 0.5},
        ),
        (
            Adam(1e-2, schedule=cosine(20)),
            lambda p: torch.optim.Adam(p, 1e-2),
            {"schedule": lambda a: torch.optim.lr_scheduler.CosineAnnealingLR(a, 20)},
        ),
        (
            Adam(1e-2, weight_decay=0.1, schedule=warm_up(7)),
            lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
            {
                "schedule": lambda a: torch.optim.lr_scheduler.LambdaLR(
                    a, lambda done: min((done + 1) / 7, 1)
                )
            },
        ),
    ],
)
@pytest.mark.parametrize("steps", [1, 20])
def test_equals_torch(adam, optimizer, extras, steps):
    params, gradients = problem()
    expected = torch_result(optimizer, params, gradients[:steps], **extras)
    stepped, state = adam_result(adam, params, gradients[:steps])
    assert state["count"]["steps"].item() == steps
    for name, value in expected.items():
        torch.testing.assert_close(stepped[name], value, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("schedule", [None, cosine(20)])
def test_rates_equal_torchs_parameter_groups(schedule):
    params, gradients = problem()

    def groups(leaves):
        weight, bias = leaves
        return torch.optim.AdamW(
            [{"params": [weight], "lr": 1e-3}, {"params": [bias]}], 1e-2, weight_decay=0.1
        )

    torch_schedule = schedule and (lambda a: torch.optim.lr_scheduler.CosineAnnealingLR(a, 20))
    expected = torch_result(groups, params, gradients, schedule=torch_schedule)
    adam = Adam(1e-2, rates={"wei": 1e-3, "weight": 1.0}, weight_decay=0.1, schedule=schedule)
    stepped, _ = adam_result(adam, params, gradients)
    for name, value in expected.items():
        torch.testing.assert_close(stepped[name], value, atol=1e-6, rtol=1e-6)


def test_parameters_named_in_undecayed_have_no_weight_decay():
    params, _ = problem()
    adam = Adam(0.1, weight_decay=0.5, undecayed=("bia",))
    zeros = {k: torch.zeros_like(v) for k, v in params.items()}
    new, _ = adam.step(params, zeros, adam.init(params))
    torch.testing.assert_close(new["weight"], 0.95 * params["weight"])  # 1 - 0.1 * 0.5
    assert torch.equal(new["bias"], params["bias"])


def test_a_step_changes_nothing_in_place():
    params, gradients = problem()
    state = Adam(1e-2).init(params)
    before = {k: v.clone() for k, v in params.items()}
    Adam(1e-2).step(params, gradients[0], state)
    assert all(torch.equal(params[k], before[k]) for k in params)
    assert state["count"]["steps"] == 0
    assert all((v == 0).all() for v in state["first"].values())


def test_stacked_learning_rates_are_those_of_single_runs():
    params, gradients = problem()
    rates = torch.tensor([1e-2, 1e-4])

    def one(lr):
        return adam_result(Adam(lr, beta1=lr * 50), params, gradients[:3])[0]

    stacked = vmap(one)(rates)
    for s, lr in enumerate(rates):
        for name, value in one(lr).items():
            torch.testing.assert_close(stacked[name][s], value, atol=1e-7, rtol=1e-6)


def test_cosine_falls_from_one_to_zero_and_stays():
    factor = cosine(100)(torch.tensor([0, 25, 50, 100, 150]))
    expected = torch.tensor([1, 0.5 + 0.5 * 0.5**0.5, 0.5, 0, 0])
    torch.testing.assert_close(factor, expected, atol=1e-6, rtol=0)
