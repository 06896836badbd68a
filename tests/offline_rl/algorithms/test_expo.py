"""EXPO: two updates by hand, the chunk that is executed, and the best action on a hill."""

from dataclasses import replace

import pytest
import torch
from by_hand import Recorded, advance, close, hill, made_batch, start
from test_dsrl import chunked, perceptron
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.expo import EXPO
from offline_rl.replay.batch import Batch
from policies.spec import Spec

SMALL = {"hidden": (16, 16), "num_inference_steps": 3, "num_critics": 3, "tau": 0.1}
SMALL |= {"actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3}


@pytest.mark.parametrize(
    "options", [{"edit_scale": 0.6}, {"horizon": 2, "num_samples": 4, "rho": 2.0}]
)
def test_an_update_equals_plain_pytorch(options):
    batches = [chunked(made_batch(seed), options.get("horizon", 1)) for seed in range(2)]
    state = start(EXPO, **options, **SMALL)
    for count, batch in enumerate(batches):
        leaves = {
            name: {k: v.clone().requires_grad_() for k, v in state.params[name].items()}
            for name in state.params
        }
        losses = losses_by_hand(state, batch, leaves, Recorded(count))
        sum(losses.values()).backward()
        before = state
        state, metrics = state.algorithm.update(replace(state, random=Recorded(count)), batch, 0)
        for name in ("critic", "policy", "log_alpha"):
            for k, leaf in leaves[name].items():
                old = before.optimizer[name]["first"][k]
                close(state.optimizer[name]["first"][k], 0.9 * old + 0.1 * leaf.grad)
        close(metrics["critic_loss"], losses["critic"])
        close(metrics["policy_loss"], losses["flow"] + losses["edit"])
        for k, value in state.params["critic_target"].items():
            close(value, 0.9 * before.params["critic_target"][k] + 0.1 * before.params["critic"][k])


def losses_by_hand(state: State, batch: Batch, leaves, random: Recorded) -> dict[str, Tensor]:
    """Return the losses at the old parameters."""
    cfg, (rows, length, actions) = state.algorithm.cfg, batch.actions.shape
    size, count = length * actions, cfg.num_samples
    s, s2 = batch.observations[:, 0], batch.next_observations[:, 0]
    a, log_alpha = batch.actions.flatten(1), leaves["log_alpha"]["value"]

    def q_of(params, s: Tensor, a: Tensor) -> Tensor:
        x = torch.cat([s, a], -1)
        return torch.stack([perceptron(params, "net.", x, k)[..., 0] for k in range(3)])

    def frozen(name: str):
        return {k: v.detach() for k, v in leaves[name].items()}

    def velocity(s: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return perceptron(leaves["policy"], "flow.network.trunk.", torch.cat([s, x, t], -1))

    def flow(s: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            for k in range(3):
                x = x + velocity(s, x, torch.full((*x.shape[:-1], 1), k / 3)) / 3
        return x.clamp(-1, 1)

    def edit(s: Tensor, chunk: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        out = perceptron(leaves["policy"], "edit.trunk.", torch.cat([s, chunk], -1))
        mean, log_std = out.chunk(2, -1)
        pi = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
        change = (mean + log_std.exp() * noise).tanh()
        return (chunk + cfg.edit_scale * change).clamp(-1, 1), pi.log_prob(change).sum(-1)

    with torch.no_grad():
        noise = random.normal((rows * count, 2, length, actions)).view(rows, count, 2, size)
        many = s2[:, None].expand(-1, count, -1)
        candidates, _ = edit(many, flow(many, noise[:, :, 0]), noise[:, :, 1])  # [B, N, D]
        best = q_of(frozen("critic"), many, candidates).mean(0).argmax(1)
        assert count == 1 or len(best.unique()) > 1
        q2 = q_of(frozen("critic_target"), s2, candidates[torch.arange(rows), best])
        mean = q2.sum(0) / 3
        y = mean - cfg.rho * ((q2 - mean).square().sum(0) / 3).sqrt()
        y = batch.rewards + batch.discount * y
    x0 = random.normal((1, *batch.actions.shape))[0].flatten(1)
    t = 1 - random.uniform((1, rows))[0, :, None]
    chunk = flow(s, random.normal(batch.actions.shape).flatten(1))
    edited, log_pi = edit(s, chunk, random.normal((rows, size)))
    q = q_of(frozen("critic"), s, edited).sum(0) / 3
    return {
        "critic": (q_of(leaves["critic"], s, a) - y).square().mean(),
        "flow": (velocity(s, (1 - t) * x0 + t * a, t) - (a - x0)).square().mean(),
        "edit": (log_alpha.exp().detach() * log_pi - q).mean(),
        "log_alpha": log_alpha.exp() * (0.5 * size - log_pi.detach().mean()),
    }


def test_without_an_edit_the_chunk_is_that_of_the_flow():
    state = start(EXPO, edit_scale=0.0, horizon=2, **SMALL)
    head = state.algorithm.acting_head()
    head.load_state_dict(dict(state.algorithm.acting_params(state.params)))
    s, noise = torch.randn(5, 1, 3), torch.randn(5, *head.noise_shape)
    flow, _ = head.policy.flow.decide(s, {}, noise[:, 0, :1])
    assert torch.equal(head.decide(s, {}, noise)[0], flow)


@pytest.mark.parametrize("aggregate", ["mean", "min"])
def test_the_policy_executes_the_chunk_that_the_target_uses(aggregate):
    state = start(EXPO, horizon=2, num_samples=4, rho=0.5, q_aggregate=aggregate, **SMALL)
    s = torch.randn(64, 1, 3)
    chunks = state.algorithm.best_chunks(state, s)
    head = state.algorithm.acting_head()
    head.load_state_dict(dict(state.algorithm.acting_params(state.params)))
    (noise,) = state.random.given
    executed, _ = head.decide(s, {}, noise.reshape(64, *head.noise_shape))
    torch.testing.assert_close(chunks, executed)


@pytest.mark.slow
def test_edits_the_actions_of_the_data_toward_the_best_one():
    """The data has uniform actions; the reward is highest at 0.3, and edits reach 0.8."""
    rates = {"actor_lr": 3e-3, "critic_lr": 3e-3, "entropy_scale": 2.0}
    options = SMALL | rates | {"hidden": (32, 32)}
    state = start(EXPO, spec=Spec((1,), 1), edit_scale=0.8, num_samples=4, **options)
    state, _ = advance(state, *[chunked(hill(seed)) for seed in range(400)])
    head = state.algorithm.acting_head()
    head.load_state_dict(dict(state.algorithm.acting_params(state.params)))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(200, *head.noise_shape, generator=generator)
    actions, _ = head.decide(torch.zeros(200, 1, 1), {}, noise)
    flow, _ = head.policy.flow.decide(torch.zeros(200, 1, 1), {}, noise[:, 0, :1])
    assert (actions - 0.3).abs().mean() < 0.15 < 0.35 < (flow - 0.3).abs().mean()
