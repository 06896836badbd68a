"""Adapter to Lei-Kun/RL-100 with vector observations: agent, critics, dynamics and policy."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.conformance.inputs import ACT, OBS
from benchmarks.conformance.job import UNUSED, Job, Learner, Link, StandIn
from benchmarks.conformance.references.dppo import read_only
from benchmarks.conformance.torch_side import link, mlp, stacked_mlp

SIDE = "torch_side"
ABSENT = "einops numba pytorch3d stable_baselines3 termcolor timm torchvision"
AGENT = "RL-100/rl_100/unidpg/uni_ppo.py"
SMALL = {"adv.std() + 1e-5": "adv.std() + 1e-8", "eps=1e-5": "eps=1e-8"}


class Identity:
    """Replacement of the normalizer."""

    def normalize(self, x: Any) -> Any:
        return dict(x) if isinstance(x, dict) else x

    unnormalize = normalize

    def __getitem__(self, name: str) -> Identity:
        return self


class Encoder(nn.Module):
    """Replacement of the point cloud encoder; observations are vectors."""

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        return observations["agent_pos"]


class Perceptron(nn.Module):
    """MLP with the interface of the reference's denoisers.

    Times are counted from 0; with `time`, all times are this value.
    """

    def __init__(self, c: dict[str, Any], embedding: nn.Module, time: float | None = None) -> None:
        super().__init__()
        size, chunk, self.fixed = c["time_size"], c["horizon"] * ACT, time
        units = [chunk + size + c["n_obs_steps"] * OBS, *c["widths"], chunk]
        embedded = nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size)
        self.time = nn.Sequential(embedding, *embedded)
        layers = [x for pair in pairwise(units) for x in (nn.Linear(*pair), nn.Mish())]
        self.trunk = nn.Sequential(*layers[:-1])

    def forward(self, sample: Tensor, timestep: Tensor, local_cond: Any, global_cond: Any) -> Any:
        times = (timestep - 1.0).expand(len(sample))
        if self.fixed is not None:
            times = torch.full_like(times, self.fixed)
        parts = [sample.flatten(1), self.time(times), global_cond]
        return self.trunk(torch.cat(parts, -1)).reshape(sample.shape)

    def links(self, name: str) -> list[Link]:
        links = mlp(f"{name}/network.embed_time.perceptron", self.time)
        return links + mlp(f"{name}/network.trunk", self.trunk)


def make_policy(c: dict[str, Any]) -> Any:
    """Return the reference's policy without encoder, with small networks and our schedules."""
    from rl_100.model.diffusion.positional_embedding import SinusoidalPosEmb
    from rl_100.policy.rl100_3d import RL1003D
    from rl_100.unidpg.diffusion_policy.diffusers_patch.ddim_with_logprob_dpok import (
        DDIMSchedulerExtended,
    )
    from rl_100.unidpg.diffusion_policy.diffusers_patch.lcm_scheduler import LCMSchedulerExtended

    policy = RL1003D.__new__(RL1003D)
    nn.Module.__init__(policy)
    levels, num_inference_steps = c["num_train_timesteps"], c["num_inference_steps"]
    sizes = {"num_train_timesteps": levels, "beta_schedule": "squaredcos_cap_v2"}
    bounds = {"clip_std_min": c["density_floor"], "clip_std_max": c["spread_max"]}
    ddim = DDIMSchedulerExtended(**sizes, **bounds, steps_offset=1)
    ddim.alphas_cumprod = torch.cat([torch.ones(1), ddim.alphas_cumprod])
    ddim.set_timesteps(num_inference_steps)
    jump = LCMSchedulerExtended(
        **sizes,
        clip_sample=False,
        prediction_type="sample",
        original_inference_steps=num_inference_steps,
    )
    jump.get_scalings_for_boundary_condition_discrete = lambda _: (0.0, 1.0)
    first = float(ddim.timesteps[0]) - 1
    attributes = {
        "model": Perceptron(c, SinusoidalPosEmb(c["time_size"])),
        "distilled_model": Perceptron(c, SinusoidalPosEmb(c["time_size"]), first),
        "target_model": Perceptron(c, SinusoidalPosEmb(c["time_size"])),  # used by another loss
        "obs_encoder": Encoder(),
        "normalizer": Identity(),
        "ddim_scheduler": ddim,
        "noise_scheduler": ddim,
        "cm_scheduler": jump,
        "ddim_inference_steps": num_inference_steps,
        "cm_inference_steps": 1,
        "horizon": c["horizon"],
        "n_obs_steps": c["n_obs_steps"],
        "n_action_steps": c["n_action_steps"],
        "action_dim": ACT,
        "obs_feature_dim": OBS,
        "no_pre_action": False,
        "obs_as_global_cond": True,
        "condition_type": "film",
        "use_pc_color": True,
        "action_norm": True,
        "is_flow": False,
    }
    for name, value in attributes.items():
        setattr(policy, name, value)
    return policy


def make_critics(c: dict[str, Any]) -> Any:
    """Return the reference's critics and V; they evaluate chunks clipped to the action range."""
    from rl_100.unidpg.critic import IQL_Q_V_no

    class Critics(IQL_Q_V_no):
        def get_advantage(self, s: Tensor, a: Tensor) -> Tensor:
            return super().get_advantage(s, a.clip(-1, 1))

    units, layers = c["critic_hidden"][0], len(c["critic_hidden"])
    critics = Critics(
        "cpu",
        OBS * c["n_obs_steps"],
        OBS,
        ACT,
        units,
        layers + 1,
        c["critic_lr"],
        1,
        c["tau"],
        c["discount"],
        c["value_hidden"][0],
        len(c["value_hidden"]) + 1,
        c["critic_lr"],
        c["expectile"],
        True,
        Identity(),
        Encoder(),
        n_obs_steps=c["n_obs_steps"],
        fix_encoder=True,
        action_norm=False,
        n_action_steps=c["n_action_steps"],
        chunk_as_single_action=True,
    )
    v = critics._value._net
    for k, layer in enumerate(v):
        v[k] = nn.Mish() if isinstance(layer, nn.ReLU) else layer
    return critics


def make_model(c: dict[str, Any]) -> Any:
    """Return the reference's transition model, without rewards, and with its optimizer."""
    from rl_100.unidpg.transition_model.dynamics import EnsembleDynamics
    from rl_100.unidpg.transition_model.models.dynamics_model import EnsembleDynamicsModel

    options = SimpleNamespace(
        n_obs_steps=c["n_obs_steps"],
        use_action_embed=False,
        policy=SimpleNamespace(use_pc_color=True),
        dynamics=SimpleNamespace(predict_delta=True),
    )
    size, hidden = OBS * c["n_obs_steps"], c["dynamics_hidden"]
    no_decay = [0.0] * (len(hidden) + 1)
    model = EnsembleDynamicsModel(
        size,
        ACT * c["n_action_steps"],
        hidden,
        c["members"],
        c["elites"],
        weight_decays=no_decay,
        with_reward=False,
        cfg=options,
    )
    model.device = "cpu"
    adam = torch.optim.Adam(model.parameters(), c["dynamics_lr"])
    return EnsembleDynamics(model, adam, None, None, Identity(), Encoder(), options)


def make_agent(module: Any, policy: Any, c: dict[str, Any]) -> Any:
    """Return the reference's agent. `ppo` has the options of the online phase."""
    ppo = SimpleNamespace(
        batch_size=0,  # rollout size and minibatch size are set when the rollout exists
        mini_batch_size=0,
        lr_a=c["policy_lr"],
        lr_c=c["value_lr"],
        gamma=c["discount"],
        lamda=c["trace"],
        epsilon=c["clip"],
        K_epochs=1,
        max_train_steps=1,
        use_adv_norm=True,
        use_lr_decay=True,
        share_encoder=True,
        fix_encoder=True,
        encoder_lr_scale=1.0,
        adaptive_kl=0.0,
        **{f"{end}_lr_{net}": 1.0 for end in ("min", "max") for net in ("actor", "critic")},
        **dict.fromkeys(("use_bc", "recon", "value_recon", "v_encoder"), False),
        **dict.fromkeys(("is_clip_value", "use_grad_clip"), False),
    )
    cfg = SimpleNamespace(
        horizon=c["horizon"],
        n_obs_steps=c["n_obs_steps"],
        n_action_steps=c["n_action_steps"],
        no_pre_action=False,
        ft_all_actions=False,
        chunk_as_single_action=True,
        distill_phase=None,
        distill_loss_type="action_same_noise",
        distill2mean=False,
        training=SimpleNamespace(max_grad_norm=float("inf"), ema_decay=0.0),
        ppo=ppo,
    )
    numbers = {"entropy_weight": 0.0, "decay": 1.0, "omega": 0.5, "batch_size": 0}
    agent = module.BehaviorProximalPolicyOptimization(
        policy, "cpu", c["offline_lr"], c["offline_clip"], **numbers, is_iql=True, cfg=cfg
    )
    agent.n_obs_steps = c["n_obs_steps"]
    return agent


def rl100(job: Job) -> Learner:
    """Return the learner for the case's phase. All classes of the reference are built for it."""
    sys.path.insert(0, str(job.checkout / "RL-100"))
    sys.meta_path.append(StandIn(ABSENT))
    torch.float = torch.float64
    c = job.config
    module = job.load(AGENT, SMALL)
    module.CONST_EPS = 1e-8
    policy, critics, model = make_policy(c), make_critics(c), make_model(c)
    agent = make_agent(module, policy, c)
    new, v = agent._policy, critics._value
    if job.phase == "online":
        agent.transfer2online(v, model, agent.cfg)
        v = agent.critic
    error = torch.zeros(c["members"])
    links = [link("fit/error", error), *mlp("value/net", v._net)]
    for name, nets in (("critic", critics._Q), ("critic_target", critics._target_Q)):
        for k in range(2):
            links += mlp(f"{name}/net", getattr(nets, f"_net{k + 1}"), k)
    layers = [*model.model.backbones, model.model.output_layer]
    links += stacked_mlp("dynamics/net", layers)
    links += [link("dynamics/most", model.model.max_logvar)]
    links += [link("dynamics/least", model.model.min_logvar)]
    links += new.model.links("model") + agent._old_policy.model.links("behavior")
    if job.phase in ("improve", "online"):
        links += [read_only(source) for source in new.model.links("policy")]
    else:
        links += policy.model.links("policy")
    updates: dict[str, Callable[[Any], dict[str, float]]] = {
        "judge": lambda b: update_critics(critics, model, b, c),
        "improve": lambda b: update_policy_offline(agent, critics, b),
        "online": lambda b: update_policy_online(agent, b, c),
    }
    if job.phase == "distill":
        agent._policy = policy
        agent.cm_optimizer = torch.optim.Adam(
            policy.distilled_model.parameters(), c["imitation_lr"]
        )
        agent.cm_lr_scheduler = SimpleNamespace(step=lambda: None)
        links += policy.distilled_model.links("student")
        updates["distill"] = lambda b: {
            "student_loss": agent.distill_update({"obs": make_observations(b)})
        }
    chain = [("noise", lambda x, k=k: x[:, k]) for k in range(c["num_inference_steps"] + 1)]
    order = {
        "improve": [*chain, *[UNUSED] * c["num_inference_steps"]],
        "online": [UNUSED],
        "distill": ["noise"],
    }
    return Learner(links, updates[job.phase], order.get(job.phase, []))


def make_observations(b: Any, name: str = "observations") -> dict[str, Tensor]:
    """Return vector observations in the reference's format, with an unused point cloud."""
    vectors = getattr(b, name)
    return {"point_cloud": torch.zeros(*vectors.shape[:2], 1, 3), "agent_pos": vectors}


def update_critics(critics: Any, model: Any, b: Any, c: dict[str, Any]) -> dict[str, float]:
    """Update critics, V and dynamics; a chunk's reward is stored at its first action."""
    first, count = c["n_obs_steps"] - 1, c["n_action_steps"]
    rewards = torch.zeros(*b.actions.shape[:2], 1)
    rewards[:, first] = b.column.rewards
    batch = {"obs": make_observations(b), "action": b.actions}
    batch |= {"next_obs": make_observations(b, "next_observations")}
    batch |= {"reward": rewards, "not_done": 1 - b.column.terminated.expand(-1, first + count)}
    q_loss, v_loss = critics.update(batch)
    s = b.observations.flatten(1)
    x = torch.cat([s, b.actions[:, first : first + count].flatten(1)], -1)
    change = b.next_observations.flatten(1) - s
    rows = [each.expand(c["members"], *each.shape) for each in (x, change)]
    loss = model.learn(*rows, batch_size=len(x))
    losses = {"critic_loss": q_loss, "value_loss": v_loss, "dynamics_loss": loss}
    return {name: float(value) for name, value in losses.items()}


def update_policy_offline(agent: Any, critics: Any, b: Any) -> dict[str, float]:
    """Sample chains and update on all denoising steps, one after another."""
    batch = {"obs": make_observations(b)}
    loss = agent.update_distribution(batch, None, None, critics, False, False)
    return {"policy_loss": loss}


def update_policy_online(agent: Any, b: Any, c: dict[str, Any]) -> dict[str, float]:
    """Update on one denoising step of a rollout in one environment, with the current V."""
    k, scheduler = int(b.step[0]), agent._policy.noise_scheduler
    scheduler.set_timesteps(c["num_inference_steps"])
    scheduler.timesteps = scheduler.timesteps[k : k + 1]
    agent.args.batch_size = agent.args.mini_batch_size = len(b.step)
    gamma = c["discount"] ** torch.arange(c["n_action_steps"])
    rewards = (b.rewards * gamma).sum(-1, keepdim=True)
    ended = (b.terminated + b.truncated).clamp(max=1)[:, None]
    rollout = (
        make_observations(b),
        b.chain[:, k : k + 2],
        b.densities[:, k : k + 1],
        rewards,
        make_observations(b, "next_observations"),
        b.column.terminated,
        ended,
    )
    buffer = SimpleNamespace(numpy_to_tensor=lambda: rollout)
    policy_loss, value_loss, *_ = agent.dp_align_update_no_share(buffer, 0)
    return {"policy_loss": float(policy_loss), "value_loss": float(value_loss)}
