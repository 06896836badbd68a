"""DSRL: two updates by hand, with and without a base policy, and the noise that it chooses."""

from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from by_hand import SPEC, Recorded, advance, close, gelu_perceptron, hill, made_batch
from steered import ECHO, base_bundle
from torch import Tensor
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from offline_rl.algorithms.common.base import State
from offline_rl.algorithms.dsrl import DSRL, Config
from offline_rl.data import Dataset
from offline_rl.replay.batch import Batch
from offline_rl.replay.buffer import ReplayBuffer
from policies import Bundle, Normalizer, Spec
from policies.heads.diffusion import DiffusionActor

RATES = {"actor_lr": 1e-3, "critic_lr": 1e-3, "alpha_lr": 1e-3}
SMALL = {"hidden": (16, 16), "num_inference_steps": 3, "num_critics": 3, "tau": 0.1} | RATES
PREDICTOR = {"predictor": "deterministic", "norm_limit": 0.05, "norm_weight": 0.7}
PREDICTOR |= {"noise_scale": 2.0, "predicted_share": 0.3, "alpha_lr": 3e-4}


def start(base: Bundle | None = None, spec: Spec = SPEC, **config) -> State:
    torch.manual_seed(0)
    algorithm = DSRL(spec, Config(**SMALL | config))
    algorithm.base = base
    tree = algorithm.initial()
    return State(algorithm, tree["params"], tree["optimizer"], Recorded(), torch.tensor(0))


def chunked(batch: Batch, horizon: int = 1, n_obs_steps: int = 1) -> Batch:
    """Return the batch as `Chunks` gives it; histories and chunks repeat a step, scaled."""
    scales = torch.linspace(1, 0.5, horizon)[:, None]
    actions = batch.actions[:, None] * scales
    scales = torch.linspace(0.5, 1, n_obs_steps)[:, None]
    s, s2 = batch.observations[:, None] * scales, batch.next_observations[:, None] * scales
    valid = torch.ones(actions.shape[:2], dtype=torch.bool)
    return replace(batch, actions=actions, valid=valid, observations=s, next_observations=s2)


def perceptron(params: dict[str, Tensor], prefix: str, x: Tensor, member: int | None = None):
    """Return an MLP's output in plain PyTorch: GELU by tanh, then layer normalization if any."""
    for k in range(3):
        weight, bias = params[f"{prefix}weights.{k}"], params[f"{prefix}biases.{k}"]
        weight, bias = (weight, bias) if member is None else (weight[member], bias[member, 0])
        x = x @ weight + bias
        if k < 2:
            x = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
        if k < 2 and member is not None:
            variance = x.var(-1, correction=0, keepdim=True)
            x = (x - x.mean(-1, keepdim=True)) / (variance + 1e-6).sqrt()
            norm = [params[f"{prefix}norms.{k}.{word}"][member, 0] for word in ("weight", "bias")]
            x = x * norm[0] + norm[1]
    return x


@pytest.mark.parametrize("options", [{"noise_scale": 0.7}, {"horizon": 2, "rho": 2.0}, PREDICTOR])
def test_an_update_equals_plain_pytorch(options):
    batches = [chunked(made_batch(seed), options.get("horizon", 1)) for seed in range(2)]
    state = start(**options)
    for count, batch in enumerate(batches):
        leaves = {
            name: {k: v.clone().requires_grad_() for k, v in state.params[name].items()}
            for name in state.params
        }
        losses = losses_by_hand(state, batch, leaves, Recorded(count))
        sum(losses.values()).backward()
        before = state
        state, metrics = state.algorithm.update(replace(state, random=Recorded(count)), batch, 0)
        assert losses.keys() == state.optimizer.keys()
        for name in losses:
            for k, leaf in leaves[name].items():
                old = before.optimizer[name]["first"][k]
                close(state.optimizer[name]["first"][k], 0.9 * old + 0.1 * leaf.grad)
            if name != "log_alpha":
                close(metrics["imitation_loss" if name == "flow" else f"{name}_loss"], losses[name])
        for target, source in (("critic_target", "critic"), ("sampler", "flow")):
            for k, value in state.params[target].items():
                close(value, 0.9 * before.params[target][k] + 0.1 * before.params[source][k])


def losses_by_hand(state: State, batch: Batch, leaves, random: Recorded) -> dict[str, Tensor]:
    """Return the losses at the old parameters."""
    cfg, size = state.algorithm.cfg, prod(batch.actions.shape[1:])
    s, s2 = batch.observations[:, 0], batch.next_observations[:, 0]
    a, is_gaussian = batch.actions.flatten(1), cfg.predictor == "gaussian"

    def q_of(params, s: Tensor, a: Tensor) -> Tensor:
        x = torch.cat([s, a], -1)
        return torch.stack([gelu_perceptron(params, "net.", x, k)[:, 0] for k in range(3)])

    def frozen(name: str):
        return {k: v.detach() for k, v in leaves[name].items()}

    def velocity(name: str, s: Tensor, x: Tensor, t: Tensor) -> Tensor:
        return gelu_perceptron(leaves[name], "network.trunk.", torch.cat([s, x, t], -1))

    def chunk(s: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            for k in range(3):
                x = x + velocity("sampler", s, x, torch.full((32, 1), k / 3)) / 3
        return x.clamp(-1, 1)

    def policy(s: Tensor) -> tuple[Tensor, Tensor]:
        out = gelu_perceptron(leaves["policy"], "trunk.", s)
        if not is_gaussian:
            return out.tanh(), torch.tensor(0.0)
        mean, log_std = out.chunk(2, -1)
        u = mean + log_std.exp() * random.normal((32, size))
        pi = TransformedDistribution(Normal(mean, log_std.exp()), TanhTransform(cache_size=1))
        return (action := TanhTransform(cache_size=1)(u)), pi.log_prob(action.clone()).sum(-1)

    with torch.no_grad():
        q2 = q_of(frozen("critic_target"), s2, chunk(s2, cfg.noise_scale * policy(s2)[0]))
        mean = q2.sum(0) / 3
        y = mean - cfg.rho * ((q2 - mean).square().sum(0) / 3).sqrt()
        y = batch.rewards + batch.discount * y
        noise = random.normal((32, size))
        if not is_gaussian:
            chosen = random.uniform((32, 1)) < 0.3
            assert 0 < chosen.sum() < 32
            noise = torch.where(chosen, cfg.noise_scale * policy(s)[0], noise)
    x0 = random.normal((1, *batch.actions.shape))[0].flatten(1)
    t = 1 - random.uniform((1, 32))[0, :, None]
    u, log_pi = policy(s)
    q = q_of(frozen("noise_critic"), s, cfg.noise_scale * u).sum(0) / 3
    old_values = q_of(frozen("critic"), s, chunk(s, noise))
    losses = {
        "critic": (q_of(leaves["critic"], s, a) - y).square().mean(),
        "noise_critic": (q_of(leaves["noise_critic"], s, noise) - old_values).square().mean(),
        "flow": (velocity("flow", s, (1 - t) * x0 + t * a, t) - (a - x0)).square().mean(),
    }
    if is_gaussian:
        log_alpha = leaves["log_alpha"]["value"]
        losses["policy"] = (log_alpha.exp().detach() * log_pi - q).mean()
        losses["log_alpha"] = log_alpha.exp() * (0.5 * size - log_pi.detach().mean())
    else:
        excess = ((cfg.noise_scale * u).square().sum(-1) / 2 - 0.1).clamp(min=0)
        losses["policy"] = 0.7 * excess.mean() - q.mean()
    return losses


def echo(spec: Spec = SPEC, n_obs_steps: int = 1) -> Bundle:
    """Return a base whose chunk of one action is its initial noise."""
    shape = {"n_obs_steps": n_obs_steps, "horizon": n_obs_steps, "n_action_steps": 1}
    options = {"hidden": [4], "time_size": 4}
    sizes = spec.observation_dim, spec.action_dim
    head = DiffusionActor(*sizes, network="mlp", options=options, table=ECHO, **shape)
    weights = {name: value.numpy() for name, value in head.state_dict().items()}
    normalizer = Normalizer.identity(spec.observation_shape)
    about = replace(spec, n_obs_steps=n_obs_steps)
    return Bundle(about, "DiffusionActor", head.arguments, weights, normalizer)


def test_batches_have_the_actions_that_the_base_executes():
    """The base's chunk of four actions starts at the older observation; three are executed."""
    rows = np.arange(6.0)[:, None]
    ends = rows[:, 0] == 5
    s, never = np.hstack([rows, rows + 9]), ends & False
    data = Dataset.from_arrays(s, rows / 10, rows[:, 0], never, ends, s + 1)
    for partial in ("drop", "bootstrap"):
        learner = DSRL(Spec((2,), 1), Config(**SMALL, partial=partial))
        learner.base = base_bundle()
        source = learner.source("update", {"offline": ReplayBuffer.from_dataset(data)})
        tensors = {name: values[0] for name, values in source.tensors().items()}
        batch = source.sample(tensors, Recorded(), 64, 0.9)
        present = batch.observations[:, 1, 0]
        close(10 * batch.actions[..., 0], (present[:, None] + torch.arange(3)).clamp(max=5))
        expected = (present <= 3).float() if partial == "drop" else None
        assert batch.weights is expected or torch.equal(batch.weights, expected)


def test_the_base_stays_unchanged_and_no_flow_is_trained():
    """The critics' inputs are the base's two observations and its chunk of three actions."""
    state = start(base_bundle(), Spec((2,), 1))
    batch = made_batch()
    batch = replace(
        batch,
        observations=batch.observations[:, :2],
        next_observations=batch.next_observations[:, :2],
        actions=batch.actions[:, :1],
    )
    after, _ = advance(state, *[chunked(batch, horizon=3, n_obs_steps=2)] * 3)
    weights = base_bundle().weights
    assert after.params["sampler"].keys() == weights.keys()
    for name, value in after.params["sampler"].items():
        assert torch.equal(value, torch.from_numpy(weights[name]))
    assert "flow" not in after.params
    assert after.params["critic"]["net.weights.0"].shape[1] == 2 * 2 + 3 * 1
    assert after.params["noise_critic"]["net.weights.0"].shape[1] == 2 * 2 + 4 * 1
    for name in ("critic", "noise_critic", "policy"):
        assert any((after.params[name][k] != v).any() for k, v in state.params[name].items())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"entropy_scale": 2.0}, PREDICTOR | {"norm_weight": 0.0}])
def test_chooses_the_noise_whose_action_is_best(options):
    """The base's action is the noise, and the reward is highest for the action 0.3."""
    spec = Spec((1,), 1)
    rates = {"actor_lr": 3e-3, "critic_lr": 3e-3}
    state = start(echo(spec), spec, **options | rates)
    state, _ = advance(state, *[chunked(hill(seed)) for seed in range(400)])
    head = state.algorithm.acting_head()
    head.load_state_dict(dict(state.algorithm.acting_params(state.params)))
    action, _ = head.decide(torch.zeros(1, 1, 1), {}, torch.zeros(1, 0))
    assert action.item() == pytest.approx(0.3, abs=0.1)


def test_it_acts_by_the_averaged_flow_at_the_scaled_noise_of_its_policy():
    state = start(**PREDICTOR, horizon=2, exploration_noise=0.3)
    shifts = enumerate(state.params.items())
    params = {k: {n: v + 0.1 * i for n, v in tree.items()} for i, (k, tree) in shifts}
    head = state.algorithm.acting_head()
    head.load_state_dict(dict(state.algorithm.acting_params(params)))
    state, s = replace(state, params=params), torch.randn(32, 1, 3)
    start_noise = 2.0 * gelu_perceptron(params["policy"], "trunk.", s[:, 0]).tanh()
    expected, _ = state.sampler.decide(s, {}, start_noise.reshape(32, 1, 2, 2))
    torch.testing.assert_close(head.decide(s, {}, torch.zeros(32, 0))[0], expected)
    still, policy = torch.zeros(4000, 3), state.algorithm.modules["policy"]
    with torch.no_grad():  # the policy of zero weights acts 0
        for p in policy.parameters():
            p.zero_()
        assert policy.explore_action(still, Recorded()).std() == pytest.approx(0.3, rel=0.05)


def test_a_norm_below_the_limit_costs_nothing():
    s = torch.randn(32, 1, 3)
    batch = replace(chunked(made_batch()), observations=s)
    for limit, is_active in ((10.0, False), (0.0, True)):
        state = start(**PREDICTOR | {"norm_limit": limit})
        metrics = advance(state, batch)[1]
        assert (metrics["norm_penalty"] > 0) == is_active


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"norm_weight": 2.0}, "norm_weight is not used with predictor=gaussian"),
        ({"norm_limit": 2.0}, "norm_limit is not used with predictor=gaussian"),
        ({"predicted_share": 0.1}, "predicted_share is not used with predictor=gaussian"),
        ({"exploration_noise": 0.2}, "exploration_noise is not used with predictor=gaussian"),
        (PREDICTOR | {"alpha_lr": 1e-3}, "alpha_lr is not used with predictor=deterministic"),
        (PREDICTOR | {"entropy_scale": 1.0}, "entropy_scale is not used with predictor=determin"),
    ],
)
def test_options_of_the_other_predictor_are_refused(options, fault):
    with pytest.raises(ValueError, match=fault):
        Config(**options)
