"""Decision Mamba: its loss and optimizer by hand, and targets that drift to a snapshot."""

from dataclasses import replace

import pytest
import torch
from by_hand import advance, close, start
from torch.nn.functional import smooth_l1_loss

from offline_rl.algorithms.decision_mamba import DM
from offline_rl.replay.batch import Batch
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from policies.heads.sequences.decision_mamba import DecisionMamba
from policies.spec import Spec

SIZES = {"dim_model": 8, "num_layers": 1, "state_size": 2, "episode_steps": 20}
SMALL = SIZES | {"context_length": 4, "target_return": 3.0, "return_scale": 2.0}


def windows(size: int = 6) -> Batch:
    """Return windows of four steps, some of which end early."""
    torch.manual_seed(1)
    valid = torch.arange(4) < 1 + torch.arange(size)[:, None] % 4
    return Batch(
        observations=torch.randn(size, 4, 3),
        actions=torch.rand(size, 4, 2) - 0.5,
        rewards=torch.randn(size, 4),
        discount=torch.ones(size, 4),
        next_observations=torch.randn(size, 4, 3),
        bootstrap_mask=torch.ones(size, 4),
        mc_returns=torch.randn(size, 4),
        timesteps=torch.arange(4).expand(size, 4),
        valid=valid,
    )


def predict(params: dict[str, torch.Tensor], batch: Batch):
    """Return the predictions of a network with these parameters."""
    net = DecisionMamba(3, 2, **SMALL)
    context = batch.observations, batch.actions, batch.mc_returns, batch.timesteps, batch.valid
    return torch.func.functional_call(net, dict(params), context)


def begin(num_updates: int = 10, **config):
    return start(DM, num_updates, Spec((3,), 2), **(SMALL | {"num_warmup_updates": 1} | config))


def pairs(valid: torch.Tensor) -> list[list[int]]:
    return valid.nonzero().tolist()


def test_updates_equal_torchs_adamw_on_the_three_losses_over_valid_steps() -> None:
    """The targets of the first snapshot period are the data's actions."""
    config = {"lr": 1e-2, "weight_decay": 0.1, "max_grad_norm": 0.05}
    state, batch = begin(**config), windows()
    net = DecisionMamba(3, 2, **SMALL)
    net.load_state_dict({k: v.clone() for k, v in state.params["policy"].items()})
    plain = ("bias", "norm_in", "norm_fine")
    parts = [[], []]
    for name, p in net.named_parameters():
        parts[any(x in name for x in plain)].append(p)
    groups = [{"params": parts[0], "weight_decay": 0.1}, {"params": parts[1], "weight_decay": 0}]
    adam = torch.optim.AdamW(groups, lr=1e-2, eps=1e-6)
    for _ in range(3):
        found = predict(dict(net.named_parameters()), batch)
        steps, following = pairs(batch.valid), pairs(batch.valid[:, 1:])
        squares = [(found.actions[k, t] - batch.actions[k, t]) ** 2 for k, t in steps]
        states = [
            smooth_l1_loss(found.next_observations[k, t], batch.observations[k, t + 1])
            for k, t in following
        ]
        returns = [
            smooth_l1_loss(found.next_returns[k, t], batch.mc_returns[k, t + 1] / 2)
            for k, t in following
        ]
        loss = 0.9 * torch.cat(squares).mean()
        loss = loss + 0.05 * (torch.stack(states).mean() + torch.stack(returns).mean())
        adam.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05) > 0.05
        adam.step()
    state, metrics = advance(state, *[batch] * 3)
    close(metrics["policy_loss"], loss)
    for name, value in net.state_dict().items():
        close(state.params["policy"][name], value)


def test_targets_mix_the_datas_actions_with_those_of_the_last_snapshot() -> None:
    """Snapshots are taken every 3 of 12 updates. The weight is 0.4 k / 4, at most 0.35.

    k = 1, 2, 3, 4 is the period of three updates; the first has no earlier policy.
    """
    state, batch = begin(12, snapshot_every=3, evolution=0.4, max_evolution=0.35), windows()
    snapshot, shares = state.params["policy"], []
    for done in range(10):
        before = state.params["policy"]
        snapshot = before if done % 3 == 0 else snapshot
        share = [0, 0.2, 0.3, 0.35][done // 3]
        target = (1 - share) * batch.actions + share * predict(snapshot, batch).actions
        error = (predict(before, batch).actions - target)[batch.valid]
        state, metrics = advance(replace(state, done=torch.tensor(done)), batch)
        close(metrics["action_loss"], error.square().mean())
        shares.append(round(metrics["snapshot_weight"].item(), 6))
    assert shares == [0, 0, 0, 0.2, 0.2, 0.2, 0.3, 0.3, 0.3, 0.35]


def test_with_the_snapshot_as_the_only_target_the_policy_converges_to_it() -> None:
    """Unlike the authors' targets, these change the direction of the steps."""
    config = {"evolution": 1.0, "max_evolution": 1.0, "prediction_weight": 0.0, "lr": 1e-2}
    state, batch = begin(1, snapshot_every=1000, **config), windows()
    other = begin().params["policy"]
    teacher = {k: v + 0.3 * torch.randn_like(v) for k, v in other.items()}
    state = replace(state, params={**state.params, "snapshot": teacher})
    state = replace(state, done=torch.tensor(1001))  # a snapshot is not due
    goal = predict(teacher, batch).actions[batch.valid]

    def distance() -> float:
        actions = predict(state.params["policy"], batch).actions[batch.valid]
        return (actions - goal).square().mean().item()

    first = distance()
    for _ in range(60):
        state, metrics = advance(state, batch)
        state = replace(state, done=torch.tensor(1001))
    assert metrics["snapshot_weight"] == 1
    assert distance() < 0.05 * first


def test_as_released_targets_are_the_datas_actions() -> None:
    config = {"snapshot_every": 1, "as_released": True, "running_state": False}
    state, batch = begin(2, **config), windows()
    assert state.params.keys() == {"policy"}
    _, metrics = advance(replace(state, done=torch.tensor(1)), batch)
    assert metrics["snapshot_weight"] == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prediction_weight": 0.6}, "prediction_weight"),
        ({"as_released": True}, "Set running_state=false"),
        ({"num_heads": 2}, "num_heads"),
        ({"context_length": 0}, "context_length"),
    ],
)
def test_invalid_options_are_refused(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(DM.Config, values)


def test_the_policy_has_the_options_of_the_method() -> None:
    options = SMALL | {"state_size": 5, "num_layers": 2, "fine": False, "running_state": False}
    options |= {"as_released": True}
    policy = DM(Spec((3,), 2), DM.Config(**options), 10).networks()["policy"]
    assert isinstance(policy, DecisionMamba)
    assert {name: policy.arguments[name] for name in options} == options
