"""Lei-Kun/RL-100: its agent, critics, transition model and policy class, of vectors."""

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
from benchmarks.conformance.references.dppo import acts
from benchmarks.conformance.torch_side import link, mlp, stacked

SIDE = "torch_side"
ABSENT = "einops numba pytorch3d stable_baselines3 termcolor timm torchvision"
AGENT = "RL-100/rl_100/unidpg/uni_ppo.py"
SMALL = {"adv.std() + 1e-5": "adv.std() + 1e-8", "eps=1e-5": "eps=1e-8"}


class Identity:
    """In place of their normalizer."""

    def normalize(self, x: Any) -> Any:
        return dict(x) if isinstance(x, dict) else x

    unnormalize = normalize

    def __getitem__(self, name: str) -> Identity:
        return self


class Encoder(nn.Module):
    """In place of theirs, of points: what is seen is a vector."""

    def forward(self, seen: dict[str, Tensor]) -> Tensor:
        return seen["agent_pos"]


class Perceptron(nn.Module):
    """Asked as their denoisers are; its times are counted from 0, or are always the same one."""

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
        found = mlp(f"{name}/network.embed_time.perceptron", self.time)
        return found + mlp(f"{name}/network.trunk", self.trunk)


def policy_of(c: dict[str, Any]) -> Any:
    """Their policy without its encoder: networks and schedulers are put in."""
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
    own = {
        "model": Perceptron(c, SinusoidalPosEmb(c["time_size"])),
        "distilled_model": Perceptron(c, SinusoidalPosEmb(c["time_size"]), first),
        "target_model": Perceptron(c, SinusoidalPosEmb(c["time_size"])),  # of another loss
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
    for name, value in own.items():
        setattr(policy, name, value)
    return policy


def critics_of(c: dict[str, Any]) -> Any:
    """Their critics and V; chunks are judged within their range."""
    from rl_100.unidpg.critic import IQL_Q_V_no

    class Critics(IQL_Q_V_no):
        def get_advantage(self, s: Tensor, a: Tensor) -> Tensor:
            return super().get_advantage(s, a.clip(-1, 1))

    units, layers = c["critic_hidden"][0], len(c["critic_hidden"])
    found = Critics(
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
    v = found._value._net
    for k, layer in enumerate(v):
        v[k] = nn.Mish() if isinstance(layer, nn.ReLU) else layer
    return found


def model_of(c: dict[str, Any]) -> Any:
    """Their transition model, without rewards, as its optimizer has it."""
    from rl_100.unidpg.transition_model.dynamics import EnsembleDynamics
    from rl_100.unidpg.transition_model.models.dynamics_model import EnsembleDynamicsModel

    options = SimpleNamespace(
        n_obs_steps=c["n_obs_steps"],
        use_action_embed=False,
        policy=SimpleNamespace(use_pc_color=True),
        dynamics=SimpleNamespace(predict_delta=True),
    )
    seen, sizes = OBS * c["n_obs_steps"], c["dynamics_hidden"]
    nothing = [0.0] * (len(sizes) + 1)
    model = EnsembleDynamicsModel(
        seen,
        ACT * c["n_action_steps"],
        sizes,
        c["members"],
        c["elites"],
        weight_decays=nothing,
        with_reward=False,
        cfg=options,
    )
    model.device = "cpu"
    adam = torch.optim.Adam(model.parameters(), c["dynamics_lr"])
    return EnsembleDynamics(model, adam, None, None, Identity(), Encoder(), options)


def agent_of(module: Any, policy: Any, c: dict[str, Any]) -> Any:
    """Their agent; `ppo` is of how it goes on online."""
    ppo = SimpleNamespace(
        batch_size=0,  # of a rollout, and of a part of it: set when it is there
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
        **{f"{end}_lr_{who}": 1.0 for end in ("min", "max") for who in ("actor", "critic")},
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
    """One of its losses, by the case's phase; all of their classes are made for each."""
    sys.path.insert(0, str(job.checkout / "RL-100"))
    sys.meta_path.append(StandIn(ABSENT))
    torch.float = torch.float64
    c = job.config
    module = job.load(AGENT, SMALL)
    module.CONST_EPS = 1e-8
    policy, critics, model = policy_of(c), critics_of(c), model_of(c)
    agent = agent_of(module, policy, c)
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
    links += stacked("dynamics/net", layers)
    links += [link("dynamics/most", model.model.max_logvar)]
    links += [link("dynamics/least", model.model.min_logvar)]
    links += new.model.links("model") + agent._old_policy.model.links("behavior")
    if job.phase in ("improve", "online"):
        links += [acts(own) for own in new.model.links("policy")]
    else:
        links += policy.model.links("policy")
    updates: dict[str, Callable[[Any], dict[str, float]]] = {
        "judge": lambda b: judged(critics, model, b, c),
        "improve": lambda b: improved(agent, critics, b),
        "online": lambda b: reinforced(agent, b, c),
    }
    if job.phase == "distil":
        agent._policy = policy
        agent.cm_optimizer = torch.optim.Adam(
            policy.distilled_model.parameters(), c["imitation_lr"]
        )
        agent.cm_lr_scheduler = SimpleNamespace(step=lambda: None)
        links += policy.distilled_model.links("student")
        updates["distil"] = lambda b: {"student_loss": agent.distill_update({"obs": seen(b)})}
    chain = [("noise", lambda x, k=k: x[:, k]) for k in range(c["num_inference_steps"] + 1)]
    order = {
        "improve": [*chain, *[UNUSED] * c["num_inference_steps"]],
        "online": [UNUSED],
        "distil": ["noise"],
    }
    return Learner(links, updates[job.phase], order.get(job.phase, []))


def seen(b: Any, name: str = "observations") -> dict[str, Tensor]:
    """Vectors as they are observed there, beside points that nothing looks at."""
    found = getattr(b, name)
    return {"point_cloud": torch.zeros(*found.shape[:2], 1, 3), "agent_pos": found}


def judged(critics: Any, model: Any, b: Any, c: dict[str, Any]) -> dict[str, float]:
    """A chunk's reward is its first action's."""
    first, count = c["n_obs_steps"] - 1, c["n_action_steps"]
    rewards = torch.zeros(*b.actions.shape[:2], 1)
    rewards[:, first] = b.column.rewards
    batch = {"obs": seen(b), "next_obs": seen(b, "next_observations"), "action": b.actions}
    batch |= {"reward": rewards, "not_done": 1 - b.column.terminated.expand(-1, first + count)}
    q_loss, v_loss = critics.update(batch)
    s = b.observations.flatten(1)
    x = torch.cat([s, b.actions[:, first : first + count].flatten(1)], -1)
    change = b.next_observations.flatten(1) - s
    rows = [each.expand(c["members"], *each.shape) for each in (x, change)]
    loss = model.learn(*rows, batch_size=len(x))
    found = {"critic_loss": q_loss, "value_loss": v_loss, "dynamics_loss": loss}
    return {name: float(value) for name, value in found.items()}


def improved(agent: Any, critics: Any, b: Any) -> dict[str, float]:
    """All steps of new chains, one after another."""
    loss = agent.update_distribution({"obs": seen(b)}, None, None, critics, False, False)
    return {"policy_loss": loss}


def reinforced(agent: Any, b: Any, c: dict[str, Any]) -> dict[str, float]:
    """One step of chains that were collected in one environment, as V now values them."""
    k, scheduler = int(b.step[0]), agent._policy.noise_scheduler
    scheduler.set_timesteps(c["num_inference_steps"])
    scheduler.timesteps = scheduler.timesteps[k : k + 1]
    agent.args.batch_size = agent.args.mini_batch_size = len(b.step)
    gamma = c["discount"] ** torch.arange(c["n_action_steps"])
    rewards = (b.rewards * gamma).sum(-1, keepdim=True)
    ended = (b.terminated + b.truncated).clamp(max=1)[:, None]
    rollout = (
        seen(b),
        b.chain[:, k : k + 2],
        b.densities[:, k : k + 1],
        rewards,
        seen(b, "next_observations"),
        b.column.terminated,
        ended,
    )
    buffer = SimpleNamespace(numpy_to_tensor=lambda: rollout)
    policy_loss, value_loss, *_ = agent.dp_align_update_no_share(buffer, 0)
    return {"policy_loss": float(policy_loss), "value_loss": float(value_loss)}
