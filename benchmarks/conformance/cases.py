"""Comparison cases: algorithm, reference file and commit, options, and removed differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REPOSITORIES = {  # key of the command: repository, commit
    "corl": ("tinkoff-ai/CORL", "6afec90484bbf47dee05fdf525e26a3ebe028e9b"),
    "td3": ("sfujim/TD3", "34770ccdcb51df6f6c7d85c1ba7e40d71b940d16"),
    "td3_bc": ("sfujim/TD3_BC", "8791ad7d7656cb8396f1b3ac8c37f170b2a2dd5f"),
    "iql": ("ikostrikov/implicit_q_learning", "09d700248117881a75cb21f0adb95c6c8a694cb2"),
    "xql": ("Div99/XQL", "dff09afb893fe782be259c2420903f8dfb50ef2c"),
    "dvl": ("hari-sikchi/DVL", "4b7cf1199998fed2a5d06780fe561900fd1d2ce1"),
    "recoil": ("chufanchen/ReCOIL", "c88ba6d29f7d1e78a047f3e848eb0c59c8061caa"),
    "cql": ("young-geng/CQL", "21efac46faadef7d24ecf03a8091ab9cc3a613fd"),
    "lb_sac": ("tinkoff-ai/lb-sac", "7253267492b144985e765399aa382f0aa7916863"),
    "mcq": ("dmksjfl/MCQ", "1f27c772fbfaaed4c093846669fa970629721c2d"),
    "ro2o": ("BattleWen/RO2O", "d066702273944fa5ec15a3050c05cf30f1ce9e05"),
    "sac": ("pranz24/pytorch-soft-actor-critic", "c1805660b3961694be54079a355155a5cad492f5"),
    "spot": ("thuml/SPOT", "4be91cce407e93a8631043328f868b1b7abb86ba"),
    "cal_ql": ("nakamotoo/Cal-QL", "ac6eafec22e8d60836573e1f488c7f626ce8a77e"),
    "rebrac": ("tinkoff-ai/ReBRAC", "694385b72fcef2ae318e3f0ff41ca36122355343"),
    "decision_transformer": (
        "kzl/decision-transformer",
        "e2d82e68f330c00f763507b3b01d774740bee53f",
    ),
    "decision_mamba": (
        "aopolin-lv/DecisionMamba",
        "d37dc8261190362c544a08e19fdf51183f667fd0",
    ),
    "rlpd": ("ikostrikov/rlpd", "c90fd4baf28c9c9ef40a81460a2e395092844f88"),
    "chunks": ("real-stanford/diffusion_policy", "5ba07ac6661db573af695b419a7947ecb704690f"),
    "edac": ("snu-mllab/EDAC", "198d5708701b531fd97a918a33152e1914ea14d7"),
    "corl_team": ("corl-team/CORL", "eeeeef2671235fcce3a3eb255576a207d78840e6"),
    "wsrl": ("zhouzypaul/wsrl", "891ee353afe5303835da421c60d4ac35f6e2ef10"),
    "consistency": (
        "Aaditya-Prasad/consistency-policy",
        "eed0c465d3c1aa6dcf22f10e784df07dec06beac",
    ),
    "lerobot": ("huggingface/lerobot", "7427f31801f944f5ec9ce53cda02862ce7d1638b"),
    "resfit": (
        "amazon-science/residual-offpolicy-rl",
        "66262b06a0caf159fb001504949b7b48ccda5f64",
    ),
    "diffusion_ql": (
        "Zhendong-Wang/Diffusion-Policies-for-Offline-RL",
        "d871f5c6b4a3a3a19a10c662a54f32d5819dfcdb",
    ),
    "dppo": ("irom-princeton/dppo", "cc7234ad7ff39a8f32de3af903606723a16f0648"),
    "fql": ("seohongpark/fql", "719d04417cb0b206deddbc7d761b3e710c3d750c"),
    "qam": ("ColinQiyangLi/qam", "f93efd22520a79f6819f458dffe9c075eacc786f"),
    "qc": ("ColinQiyangLi/qc", "48283b4f662bd1c127ec9fa80647b49759f10653"),
    "idql": ("philippe-eecs/IDQL", "7582571ce686c77b4ee0f592dd639ab8151295fa"),
    "fisor": ("ZhengYinan-AIR/FISOR", "2097e8bbc96ef49183f22cb2a1b05948b5859ec0"),
    "offlinerl_kit": (
        "yihaosun1124/OfflineRL-Kit",
        "e3ce69793766d02660217d4dfc0af4693a5531bd",
    ),
    "coplanner": ("si0wang/COPlanner", "35a4b8a29a1dcfca1677d0b08ac169cc6c6cffe8"),
    "hnpg": ("YifeiZhou02/HNPG", "7d7ace151c379497b0acc249ce8457b4e17b860d"),
    "cleanrl": ("vwxyzjn/cleanrl", "fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"),
    "rl100": ("Lei-Kun/RL-100", "bcb457fdc51491ac8f98d073a8463d12871c34c3"),
    "caps": ("yassineCh/CAPS", "f578c22d1ef43e5cfd400779bac9becb98b33733"),
    "osrl": ("liuzuxin/OSRL", "03a4586463690566ec8d7830ca4027b46d4ad02f"),
    "arsq": ("mihir-chauhan/CQN-AS-Franka", "fe90e726de072c18aa427a6f57717acbfb72b248"),
    "sequence_rl": (
        "dee0512/Sequence-Reinforcement-Learning",
        "c2165d906f6ab69c6146d69e5f795a6cdb1b50bf",
    ),
    "cqn": ("younggyoseo/CQN", "1932a05d87fa368639c4a4158bd3d5182e46c4c9"),
}
EPSILON = "tanh log density: 1e-6 inside the logarithm -> 0"
SILENT = "the reference does not report its losses"
CRITICS = "the reference does not report its critic loss"


@dataclass(frozen=True)
class Case:
    """Comparison of one algorithm with one file of public code."""

    algorithm: str
    repository: str  # key of REPOSITORIES; the adapter is references/<repository>.py:<algorithm>
    file: str
    draws: tuple[str, ...] = ()  # names of our random draws in an update, in order
    config: Mapping[str, Any] = field(default_factory=dict)  # options other than network sizes
    online: Mapping[str, Any] = field(default_factory=dict)  # options of online training
    shifts: Mapping[str, float] = field(default_factory=dict)  # numbers added to initial parameters
    phase: str = "update"
    variant: str = ""  # distinguishes cases with the same algorithm and repository
    adapted: tuple[str, ...] = ()  # differences removed by changing the reference
    aims: tuple[str, ...] = ("rewards", "discount")  # columns that the fault is added to
    updates: int = 10  # even, because some algorithms do more in every second update

    @property
    def name(self) -> str:
        return "-".join(x for x in (self.algorithm, self.repository, self.variant) if x)

    @property
    def inputs(self) -> str:
        """Return a key of all inputs. Cases with equal keys must have the same numbers."""
        options = [sorted(x.items()) for x in (self.config, self.online)]
        options += [sorted(self.shifts.items())] if self.shifts else []
        return repr((self.algorithm, *options, self.draws, self.phase, self.updates))


# names of draws (Case.draws) that several cases share, in order
SOFT = ("temperature", "policy", "next")
ROBUST = (*SOFT[:2], "policy_noise", "next", "q_noise", "ood_noise", "ood")
PENALTY = ("policy", "next", "current_samples", "next_samples", "uniform")
NORM = "layer normalization: 1e-6 added to the variance -> 1e-5"
SHARED = "separate action samples for each loss -> the same samples for all losses"
START = "short windows are right-aligned -> left-aligned"
TRAINER = "lifelong_rl/trainers/q_learning/sac.py"
NEWEST = "all losses at the old parameters -> each loss at the latest parameters"
SEQUENCE = {
    "context_length": 6,
    "dim_model": 8,
    "num_layers": 2,
    "num_heads": 2,
    "episode_steps": 12,
}
SEQUENCE |= {"target_return": 1.0, "return_scale": 2.0, "num_warmup_updates": 8}
LIMITED = SEQUENCE | {"episode_steps": 16, "target_cost": 5.0, "dropout": 0.0}
DENOISING = {
    "n_obs_steps": 2,
    "horizon": 4,
    "n_action_steps": 2,
    "num_train_timesteps": 20,
    "num_inference_steps": 5,
}
DENOISING |= {"num_warmup_updates": 3}
CHUNK = {
    "n_obs_steps": 1,
    "horizon": 4,
    "n_action_steps": 2,
    "dim_model": 8,
    "num_heads": 2,
    "dim_feedforward": 8,
}
CHUNK |= {
    "num_layers": 1,
    "num_vae_encoder_layers": 1,
    "latent_dim": 3,
    "lr": 1e-3,
    "kl_weight": 0.1,
}
CHUNK |= {"num_decoder_layers": 2, "max_grad_norm": 0.1}
DROPPED = (*(f"vae_encoder_{i}" for i in range(4)), "z", *(f"encoder_{i}" for i in range(4)))
DROPPED += tuple(f"decoder_{i}" for i in range(12))
JUMPED = {
    name: tuple(f"{name}_{k}" for k in range(16))
    for name in ("target", "target_rest", "jump", "rest", "denoised")
}
PATH = ("time_index", "later_index", "noise", *JUMPED["target"], *JUMPED["target_rest"])
PATH += ("dsm_index", "noise_level", "dsm_noise")
PATH += JUMPED["jump"] + JUMPED["rest"] + JUMPED["denoised"]
STATE = "observations with the robot state only: refused -> allowed"
OTHERS = "the reference's network and optimizer -> an MLP and AdamW"
FLOW = {"n_obs_steps": 2, "horizon": 4, "n_action_steps": 2, "network": "mlp", "widths": [8, 8]}
FLOW |= {"time_size": 4, "num_warmup_updates": 0, "decay_lr": False, "ema_max": 0.0}
ENSEMBLE = {"num_critics": 3, "num_min_critics": 2}
SUBSETS = ("policy", "next", "next_subset", *PENALTY[2:], "subset")
SUM = "mean of the critic losses -> sum"
OPTIONS = (
    NORM,
    "log standard deviation without learned scale and shift -> with them",
    "critics share the output layer -> separate output layers",
    SUM,
)
TEMPERED = (
    "temperature loss: linear in the temperature, at next states -> linear in its logarithm, at "
    "current states"
)
LOWDIM = "diffusion_policy/policy/diffusion_{}_lowdim_policy.py"
REINFORCED: dict[str, Any] = {"network": "mlp", "widths": [8, 8], "time_size": 4, "n_obs_steps": 2}
REINFORCED |= {
    "horizon": 4,
    "n_action_steps": 2,
    "num_train_timesteps": 20,
    "num_inference_steps": 5,
    "tuned": 5,
}
REINFORCED |= {"noise_max": 100.0, "environments": 1, "decisions": 7, "batch_size": 7}
REINFORCED |= {"spread_max": 0.5, "policy_lr": 1e-3, "offline_lr": 1e-3, "one_step": "none"}
REINFORCED |= {"clip": 0.04, "offline_clip": 0.04, "members": 3, "elites": 2}
DENOISED: dict[str, Any] = {
    "network": "mlp",
    "widths": [8, 8],
    "time_size": 4,
    "num_inference_steps": 5,
}
DENOISED |= {"tuned": 3, "batch_size": 60_000, "n_obs_steps": 1, "horizon": 4, "n_action_steps": 2}
DENOISED |= {"first_clip": 0.001, "policy_lr": 1e-3}
LOCKED = {"num_steps": 3, "discount": 1.0, "decisions": 9, "environments": 1}
EXECUTED = "Q of sampled actions -> of actions clipped to [-1, 1]"
WIDER = "hidden width of the time embedding: 2 times its input -> 4 times"
RESIDUAL: dict[str, Any] = {"mean_first": True, "noise": 0.2, "actor_lr": 1e-3}
BLIND = (
    "subset of critics sampled by `choice` -> sampled as in our code",
    "image features, including a layer shared by all critics -> 0",
)
VECTORS = "point clouds and images with encoders -> vectors and MLPs"
LEVELS = (
    "the last denoising step leads to the lowest noise level, and times are counted from there -> "
    "it leads to no noise"
)
IDQL_DRAWS = ("noise", "time", *(f"dropout_{k}" for k in range(3)))
IDQL: dict[str, Any] = {"width": 8, "time_size": 4, "dropout": 0.2}
ADDED = "1e-{} added to the advantages' standard deviation -> 1e-8"
KIT = "offlinerlkit/policy/model_based/{}.py"
FIT = "offlinerlkit/dynamics/ensemble_dynamics.py"
MODEL: dict[str, Any] = {"members": 3, "elites": 2, "real_share": 0.5}
ANNEALED = "the actor's learning rate falls every 1,000 updates -> every update"
SINGLE = "predictions in float32 -> float64"
STEPS = tuple(f"{name}_{k}" for k in range(3) for name in ("action", "member", "noise"))
RELEASED = {"as_released": True, "target_cost": 1.0, "episode_steps": 300}
# moves the values of cost critics to the limit
COSTS = {f"{name}/net.biases.2": 0.75 for name in ("cost_critic", "cost_critic_target")}
BINS: dict[str, Any] = {"levels": 2, "bins": 7, "alpha": 0.1}
RETURNS: dict[str, Any] = {"levels": 2, "bins": 3, "features": 6, "atoms": 11}
RETURNS |= {"v_min": -3.0, "v_max": 3.0, "margin": 0.5, "dominance_weight": 0.25}
MEAN = "margin loss: sum over all rows -> mean over demonstrations"
BIASES = "layers before a layer normalization: no biases -> biases"
CASES = (
    Case(
        "diffusion_policy",
        "chunks",
        LOWDIM.format("unet"),
        ("noise", "level"),
        DENOISING | {"widths": [16, 16], "time_size": 4},
        variant="unet",
        aims=("actions",),
        updates=4,
    ),
    Case(
        "diffusion_policy",
        "chunks",
        LOWDIM.format("transformer"),
        ("noise", "level"),
        DENOISING
        | {"network": "transformer", "widths": [8, 8], "num_heads": 2}
        | {"weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95},
        variant="transformer",
        aims=("actions",),
    ),
    Case(
        "diffusion_policy",
        "consistency",
        "consistency_policy/teacher/edm_policy.py",
        ("noise_level", "noise"),
        {
            "process": "edm",
            "n_obs_steps": 2,
            "horizon": 4,
            "n_action_steps": 2,
            "num_warmup_updates": 3,
        }
        | {"widths": [16], "time_size": 4},
        adapted=("dropout in the middle block, which no option controls -> none",),
        aims=("actions",),
        updates=4,
    ),
    Case(
        "act",
        "lerobot",
        "src/lerobot/policies/act/modeling_act.py",
        ("z",),
        CHUNK | {"dropout": 0.0},
        adapted=(STATE,),
        aims=("actions",),
        updates=4,
    ),
    Case(
        "act",
        "lerobot",
        "src/lerobot/policies/act/modeling_act.py",
        DROPPED,
        CHUNK,
        variant="dropout",
        adapted=(STATE,),
        aims=("actions",),
        updates=4,
    ),
    Case(
        "consistency",
        "consistency",
        "consistency_policy/student/ctm_policy.py",
        PATH,
        {"n_obs_steps": 2, "horizon": 4, "n_action_steps": 2, "num_warmup_updates": 3}
        | {"widths": [16, 16], "time_size": 4, "ema_max": 0.0},
        adapted=(
            "some sampled paths start and end at the same time -> none do",
            "each half of a batch is noised by one of two rules -> alternating chunks",
        ),
        aims=("actions",),
        updates=4,
    ),
    Case(
        "flow_policy",
        "lerobot",
        "src/lerobot/policies/multi_task_dit/modeling_multi_task_dit.py",
        ("noise", "time"),
        FLOW,
        adapted=(OTHERS,),
        aims=("actions",),
    ),
    Case(
        "flow_policy",
        "lerobot",
        "src/lerobot/policies/multi_task_dit/modeling_multi_task_dit.py",
        ("noise", "time"),
        FLOW | {"mask_ends": True},
        variant="mask_ends",
        adapted=(OTHERS,),
        aims=("actions",),
    ),
    Case(
        "dppo",
        "dppo",
        "model/diffusion/diffusion_ppo.py",
        config=DENOISED | {"num_train_timesteps": 5},
        adapted=(WIDER,),
        aims=("advantages", "returns"),
    ),
    Case(
        "dppo",
        "dppo",
        "model/diffusion/diffusion_ppo.py",
        config=DENOISED | {"num_train_timesteps": 20, "sampler": "ddim"},
        variant="ddim",
        adapted=(WIDER, "DDIM follows the noise of the clipped prediction -> the network's noise"),
        aims=("advantages", "returns"),
    ),
    Case(
        "ppo",
        "cleanrl",
        "cleanrl/ppo_continuous_action.py",
        config={"entropy_weight": 0.01, "policy_lr": 1e-3, "value_lr": 1e-3},
        aims=("advantages", "returns"),
    ),
    Case(
        "hnpg",
        "hnpg",
        "trpo.py",
        ("value", "next_value", "off_action", "off_value"),
        LOCKED,
        adapted=(EXECUTED,),
        aims=("rewards", "off_rewards"),
        updates=4,
    ),
    Case(
        "trpo",
        "hnpg",
        "trpo.py",
        ("value", "next_value"),
        LOCKED,
        adapted=(EXECUTED,),
        updates=4,
        aims=("rewards",),
    ),
    Case(
        "rl100",
        "rl100",
        "RL-100/rl_100/unidpg/critic.py",
        config=REINFORCED,
        phase="judge",
        variant="judges",
        adapted=(
            VECTORS,
            "target networks follow every second update -> every update",
            "weight decay of the transition model -> none",
            "V's ReLU -> Mish",
        ),
    ),
    Case(
        "rl100",
        "rl100",
        "RL-100/rl_100/unidpg/uni_ppo.py",
        ("noise",),
        REINFORCED,
        phase="improve",
        variant="offline",
        adapted=(
            VECTORS,
            LEVELS,
            ADDED.format(10),
            "critics evaluate sampled chunks -> chunks clipped to the action range",
        ),
        aims=("observations",),
        updates=4,
    ),
    Case(
        "rl100",
        "rl100",
        "RL-100/rl_100/unidpg/uni_ppo.py",
        config=REINFORCED,
        phase="online",
        variant="online",
        adapted=(
            VECTORS,
            LEVELS,
            ADDED.format(5),
            "Adam's epsilon: 1e-5 -> 1e-8",
            "V: one update for all denoising steps, gradient and values clipped -> one update per "
            "step, not clipped",
        ),
        aims=("rewards",),
    ),
    Case(
        "rl100",
        "rl100",
        "RL-100/rl_100/policy/rl100_3d.py",
        ("noise",),
        REINFORCED | {"one_step": "afterward"},
        phase="distill",
        variant="one_step",
        adapted=(
            VECTORS,
            LEVELS,
            "less than 1e-6 of the noise in the one-step head's output -> none",
            "time input of the one-step head: 99 -> 90, the first time of the policy",
            "gradient clipping -> none",
        ),
        aims=("observations",),
    ),
    Case("bc", "corl", "algorithms/offline/any_percent_bc.py", aims=("actions",)),
    Case("bc_safe", "osrl", "osrl/algorithms/bc.py", aims=("actions",)),
    Case("td3", "td3", "TD3.py", ("noise",)),
    Case("td3_bc", "td3_bc", "TD3_BC.py", ("noise",)),
    Case("td3_bc", "corl", "algorithms/offline/td3_bc.py", ("noise",)),
    Case(
        "iql",
        "corl",
        "algorithms/offline/iql.py",
        adapted=(
            "Q's target and the advantage use the old V -> the new V",
            "half of Q's loss -> the full loss",
        ),
    ),
    Case("iql", "iql", "learner.py", updates=6),
    Case(
        "iql",
        "iql",
        "learner.py",
        ("dropout_0", "dropout_1"),
        {"dropout": 0.2, "beta": 20.0},
        variant="dropout",
        updates=6,
    ),
    Case("cql", "corl", "algorithms/offline/cql.py", PENALTY),
    Case(
        "cql",
        "corl",
        "algorithms/offline/cql.py",
        PENALTY,
        {"gap": 1.0, "max_target_backup": True, "backup_entropy": True, "clip_diff_max": 5.0},
        variant="lagrange",
    ),
    *(
        Case(
            "caps",
            "caps",
            "osrl/algorthims/capsiql.py",
            config={"num_heads": h, "target_cost": 5.0, "episode_steps": 30, "decay_updates": 20},
            variant=f"{h}-policies",
            aims=("rewards", "costs"),
        )
        for h in (2, 4)
    ),
    Case(
        "caps",
        "caps",
        "osrl/algorthims/capsiql.py",
        config={"num_heads": 4, "target_cost": 1.0, "episode_steps": 7, "decay_updates": 20},
        phase="act",
        variant="switch",
        aims=("observations",),
    ),
    Case("xql", "xql", "offline/learner.py", adapted=(NORM,), updates=6),
    Case(
        "xql",
        "xql",
        "offline/learner.py",
        ("noise",),
        {"noise": True, "value_updates": 2, "temperature": 0.5, "max_clip": 1.0},
        variant="noise",
        adapted=(NORM,),
        updates=6,
    ),
    Case(
        "xql",
        "xql",
        "offline/learner.py",
        ("uniform",),
        {"random_actions": 2, "layer_norm": False},
        variant="uniform",
        updates=6,
    ),
    Case(
        "f_dvl",
        "dvl",
        "offline/learner.py",
        config={"conjugate": "released"},
        variant="chi_square",
        adapted=(NORM,),
        updates=6,
    ),
    Case(
        "f_dvl",
        "dvl",
        "offline/learner.py",
        config={"divergence": "total_variation", "conjugate": "released"},
        variant="total_variation",
        adapted=(NORM,),
        updates=6,
    ),
    Case("recoil", "recoil", "offline/learner_imitate.py", updates=6),
    Case("sac_n", "corl", "algorithms/offline/sac_n.py", SOFT, adapted=(EPSILON,)),
    Case("edac", "corl", "algorithms/offline/edac.py", SOFT, adapted=(EPSILON, CRITICS)),
    Case("sac_n", "edac", TRAINER, SOFT, adapted=(EPSILON, NEWEST, SILENT)),
    Case("edac", "edac", TRAINER, SOFT, adapted=(EPSILON, NEWEST, SILENT)),
    Case(
        "decision_transformer",
        "decision_transformer",
        "gym/decision_transformer/training/seq_trainer.py",
        config=SEQUENCE | {"dropout": 0.0},
        adapted=(START,),
        aims=("actions",),
    ),
    Case(
        "decision_transformer",
        "decision_transformer",
        "gym/decision_transformer/training/seq_trainer.py",
        tuple(f"dropout_{i}" for i in range(7)),
        SEQUENCE,
        variant="dropout",
        aims=("actions",),
    ),
    Case(
        "decision_mamba",
        "decision_mamba",
        "experiment-d4rl/decision_transformer/training/seq_trainer.py",
        config={k: v for k, v in SEQUENCE.items() if k != "num_heads"}
        | {"state_size": 4, "as_released": True, "running_state": False},
        adapted=(
            "convolution of 768 channels -> of the size of the network",
            "states of the scans are copied to a cache that training does not read -> not copied",
        ),
        aims=("actions",),
    ),
    Case(
        "cdt",
        "osrl",
        "osrl/algorithms/cdt.py",
        config=LIMITED,
        aims=("actions",),
    ),
    Case(
        "cdt",
        "osrl",
        "osrl/algorithms/cdt.py",
        config=LIMITED,
        phase="act",
        variant="acting",
        aims=("observations",),
    ),
    Case(
        "cdt",
        "osrl",
        "osrl/common/dataset.py",
        config=LIMITED
        | {"augmentation": 0.5, "degree": 2, "max_return": 500.0, "max_decrease": 60.0}
        | {"as_released": True},
        phase="augment",
        variant="episodes",
        aims=("mc_returns", "mc_costs"),
        updates=2,  # with equal numbers of new episodes
    ),
    Case("lb_sac", "corl", "algorithms/offline/lb_sac.py", SOFT, adapted=(EPSILON, CRITICS)),
    Case("lb_sac", "lb_sac", "lb_sac/sac.py", SOFT, adapted=(EPSILON, CRITICS)),
    Case("awac", "corl", "algorithms/offline/awac.py", ("next", "policy")),
    Case("cql", "cql", "SimpleSAC/conservative_sac.py", PENALTY),
    Case("cql", "cql", "SimpleSAC/conservative_sac.py", PENALTY, phase="clone", variant="clone"),
    Case(
        "ro2o",
        "ro2o",
        "algorithms/offline/ro2o_mujoco.py",
        ROBUST,
        {"pessimism_decay": 0.05},
        adapted=(EPSILON,),
    ),
    Case(
        "ro2o",
        "ro2o",
        "algorithms/offline/ro2o_antmaze_LCB.py",
        ROBUST,
        {"bound": "lcb", "cloning": 10.0, "independent": True},
        variant="lcb",
        adapted=(EPSILON,),
    ),
    Case(
        "sac",
        "sac",
        "sac.py",
        ("next", "policy"),
        adapted=(
            EPSILON,
            "fixed temperature in the first update -> the learned temperature's initial value",
        ),
    ),
    Case(
        "sequence_rl",
        "sequence_rl",
        "scripts/sac.py",
        ("next", "policy_0", "policy_1", "policy_2"),
        {"horizon": 3, "predict_change": False},
        adapted=(
            EPSILON,
            "fixed temperature in the first update -> the learned temperature's initial value",
            "a second batch for model and actor -> the same batch",
        ),
        aims=("rewards", "discount", "previous_actions"),
    ),
    Case(
        "spot",
        "spot",
        "SPOT.py",
        ("latent",),
        phase="fit_vae",
        variant="fit_vae",
        aims=("actions",),
    ),
    Case(
        "spot",
        "spot",
        "SPOT.py",
        ("noise", "target_dropout_0", "target_dropout_1", "dropout_0", "dropout_1", "latent"),
    ),
    Case(
        "rebrac",
        "rebrac",
        "src/algorithms/rebrac.py",
        ("noise",),
        adapted=(
            NORM,
            "target policy follows the policy before its update -> after it",
            "actor trained in the first of every two updates -> in the second",
        ),
        updates=6,
    ),
    Case(
        "fql",
        "fql",
        "agents/fql.py",
        ("next", "x0", "time", "z"),
        {"alpha": 3.0, "normalize_q": False, "num_inference_steps": 4},
    ),
    Case(
        "fql",
        "fql",
        "agents/fql.py",
        ("next", "x0", "time", "z"),
        {"q_aggregate": "min", "num_inference_steps": 4},
        variant="normalized-min",
    ),
    Case("ifql", "fql", "agents/ifql.py", ("x0", "time")),
    Case(
        "idql",
        "idql",
        "jaxrl5/agents/ddpm_iql/ddpm_iql_learner.py",
        IDQL_DRAWS,
        IDQL,
    ),
    Case(
        "idql",
        "idql",
        "jaxrl5/agents/ddpm_iql_simple/ddpm_iql_learner.py",
        IDQL_DRAWS,
        IDQL | {"policy_activation": "silu", "expectile": 0.9},
        variant="simple",
    ),
    Case(
        "idql",
        "idql",
        "jaxrl5/agents/ddpm_iql/ddpm_iql_learner.py",
        config=IDQL,
        phase="online",
        variant="online",
    ),
    Case(
        "fisor",
        "fisor",
        "jaxrl5/agents/fisor/fisor.py",
        tuple(f"{name}_{k}" for k in range(2) for name in IDQL_DRAWS),
        IDQL | {"policy_updates": 2, "critic_rows": 5},
        adapted=("values are trained on the first 256 rows -> 5 rows",),
        aims=("rewards", "discount"),
    ),
    *(
        Case(
            "diffusion_ql",
            "diffusion_ql",
            "agents/ql_diffusion.py",
            ("next", "noise", "level", "policy", "coin"),
            {"average_start": 3, "average_every": 2, "num_target_samples": samples}
            | {"max_grad_norm": max_grad_norm},
            variant=variant,
        )
        for variant, samples, max_grad_norm in (("", 1, 0.5), ("max_q_backup", 10, 100.0))
    ),
    Case(
        "qc",
        "qc",
        "agents/acfql.py",
        ("next", "x0", "time"),
        {"horizon": 3, "partial": "drop", "num_inference_steps": 4},
        aims=("rewards", "discount", "weights"),
    ),
    Case(
        "qc",
        "qc",
        "agents/acfql.py",
        ("next", "x0", "time"),
        {"horizon": 3, "partial": "drop", "num_inference_steps": 4, "q_aggregate": "min"}
        | {"num_critics": 3},
        variant="min",
    ),
    Case(
        "qc_fql",
        "qc",
        "agents/acfql.py",
        ("next", "x0", "time", "z"),
        {"horizon": 3, "partial": "drop", "num_inference_steps": 4}
        | {"alpha": 3.0, "normalize_q": False},
    ),
    Case(
        "dsrl",
        "qam",
        "agents/dsrl.py",
        ("next", "noise", "x0", "time", "policy"),
        {"num_inference_steps": 4, "noise_scale": 0.8},
    ),
    Case(
        "dsrl",
        "qam",
        "agents/dsrl.py",
        ("next", "noise", "x0", "time", "policy"),
        {"num_inference_steps": 3, "horizon": 2, "rho": 0.0, "noise_scale": 1.4},
        variant="chunks",
    ),
    Case(
        "expo",
        "qam",
        "agents/fedit.py",
        ("next", "x0", "time", "noise", "edit"),
        {"num_inference_steps": 4},
    ),
    Case(
        "expo",
        "qam",
        "agents/fedit.py",
        ("next", "x0", "time", "noise", "edit"),
        {"num_inference_steps": 3, "horizon": 2, "rho": 0.0, "num_samples": 4, "edit_scale": 0.5},
        variant="best-of-4",
    ),
    Case(
        "rlpd",
        "rlpd",
        "rlpd/agents/sac/sac_learner.py",
        ("next", "subset", "policy"),
        online={"utd": 2.0},
        adapted=(NORM, "subset of critics sampled by `choice` -> sampled as in our code"),
        updates=6,
    ),
    Case(
        "wsrl",
        "wsrl",
        "wsrl/agents/sac.py",
        ("next", "subset", "policy", "entropy"),
        online={"utd": 2.0},
        adapted=(
            NORM,
            "softplus of the temperature's parameter -> exp",
            "log standard deviation without learned scale and shift -> with them",
            "critics share the output layer -> separate output layers",
            "networks not trained in a step still move by momentum -> unchanged",
            "the actor's batch: all batches of a block -> the block's last batch",
        ),
        updates=6,
    ),
    Case(
        "resfit",
        "resfit",
        "resfit/rl_finetuning/off_policy/rl/q_agent.py",
        ("noise", "subset"),
        RESIDUAL,
        {"utd": 2.0, "critic_updates": 2},
        adapted=BLIND,
        updates=8,
    ),
    Case(
        "resfit",
        "resfit",
        "resfit/rl_finetuning/off_policy/rl/q_agent.py",
        ("noise", "subset"),
        RESIDUAL | {"correction_weight": 0.5},
        {"utd": 2.0, "critic_updates": 2},
        variant="correction_weight",
        adapted=BLIND,
        updates=8,
    ),
    Case(
        "iql",
        "iql",
        "learner.py",
        phase="online",
        variant="online",
        updates=6,
    ),
    Case(
        "awac",
        "corl",
        "algorithms/finetune/awac.py",
        ("next", "policy"),
        phase="online",
        variant="online",
    ),
    Case(
        "cql",
        "corl",
        "algorithms/finetune/cql.py",
        PENALTY,
        {"max_target_backup": True, "clip_diff_min": -0.5},
        phase="online",
        variant="online",
    ),
    Case(
        "spot",
        "corl",
        "algorithms/finetune/spot.py",
        ("noise", "latent"),
        {"dropout": 0.0},
        phase="online",
        variant="online",
        adapted=("online updates are counted from 1 -> from 0",),
        updates=14,
    ),
    Case(
        "rebrac",
        "corl_team",
        "algorithms/finetune/rebrac.py",
        ("noise",),
        {"policy_bc": 0.5},
        phase="online",
        variant="online",
        adapted=(
            NORM,
            "target policy follows the policy before its update -> after it",
            "actor trained in the first of every two updates -> in the second",
        ),
        updates=14,
    ),
    Case(
        "ro2o",
        "ro2o",
        "algorithms/finetune/ro2o_ft_mujoco.py",
        ROBUST,
        {"q_smoothness": 0.0, "policy_smoothness": 0.0, "uncertainty": 0.0},
        phase="online",
        variant="online",
        adapted=(EPSILON,),
    ),
    Case(
        "cal_ql",
        "cal_ql",
        "JaxCQL/conservative_sac.py",
        PENALTY,
        adapted=(SHARED,),
        updates=6,
    ),
    Case(
        "cal_ql",
        "cal_ql",
        "JaxCQL/conservative_sac.py",
        PENALTY,
        {"max_target_backup": True},
        phase="online",
        variant="online",
        adapted=(SHARED,),
        updates=6,
    ),
    Case(
        "cal_ql",
        "cal_ql",
        "JaxCQL/conservative_sac.py",
        PENALTY,
        {"gap": 0.8},
        variant="lagrange",
        adapted=(SHARED,),
        updates=6,
    ),
    *(
        Case(
            algorithm,
            "wsrl",
            "wsrl/agents/cql.py",
            SUBSETS,
            ENSEMBLE | {"layer_norm": True, "max_target_backup": True},
            variant="ensemble",
            adapted=(*OPTIONS, "softplus of the temperature's parameter -> exp", TEMPERED),
            updates=6,
        )
        for algorithm in ("cal_ql", "cql")
    ),
    Case(
        "iql",
        "wsrl",
        "wsrl/agents/iql.py",
        ("subset",),
        ENSEMBLE | {"squashed": True, "layer_norm": True, "decay_actor_lr": False},
        variant="ensemble",
        adapted=(
            *OPTIONS,
            "Q's target and the advantage use the old V -> the new V",
            "a subset of critics for each loss -> one subset",
        ),
        updates=6,
    ),
    *(
        Case(
            "rambo",
            "offlinerl_kit",
            KIT.format("rambo"),
            draws,
            MODEL | {"batch_size": 7, "adversary": 0.5, "cloning_updates": 20},
            phase=phase,
            variant=variant,
            adapted=(EPSILON,) if phase == "update" else (),
            aims=aims,
        )
        for phase, variant, draws, aims in (
            ("clone", "clone", ("policy",), ("actions",)),
            ("update_adversary", "adversary", ("action", "member", "noise"), ("rewards",)),
            ("update", "", ("next", "policy"), ("rewards", "discount")),
        )
    ),
    Case(
        "mopo",
        "offlinerl_kit",
        FIT,
        config=MODEL,
        phase="fit_dynamics",
        variant="fit",
        aims=("rewards",),
    ),
    Case(
        "mopo",
        "offlinerl_kit",
        FIT,
        ("bootstrap", *(f"shuffle_{k}" for k in range(8))),
        MODEL | {"batch_size": 7, "dynamics_lr": 0.03, "dynamics_epochs": 8, "patience": 2},
        phase="fit_completely",
        variant="early-stop",
        adapted=("random holdout rows -> the first rows",),
        aims=("rewards",),
        updates=6,
    ),
    *(
        Case(
            "mopo",
            "offlinerl_kit",
            FIT,
            STEPS,
            MODEL | {"horizon": 3, "penalty": 1.5, "uncertainty": kind},
            phase="roll_out",
            variant=kind,
            adapted=(SINGLE,),
            aims=("observations",),
            updates=4,
        )
        for kind in ("aleatoric", "disagreement", "spread")
    ),
    Case(
        "mopo",
        "offlinerl_kit",
        KIT.format("mopo"),
        ("next", "policy"),
        MODEL,
        adapted=(EPSILON, ANNEALED),
    ),
    *(
        Case(
            "combo",
            "offlinerl_kit",
            KIT.format("combo"),
            PENALTY,
            MODEL | {"logsumexp_samples": "repeat", "states": states},
            variant=states,
            adapted=(EPSILON, ANNEALED, CRITICS),
        )
        for states in ("mix", "model")
    ),
    *(
        Case(
            "mobile",
            "offlinerl_kit",
            KIT.format("mobile"),
            ("next", "prediction", "predicted", "policy"),
            MODEL | {"clamp_targets": True} | config,
            variant=variant,
            adapted=(EPSILON, ANNEALED, SUM),
        )
        for variant, config in (
            ("", {}),
            ("entropy", {"entropy_in_target": True}),
            ("max_q_backup", {"max_q_backup": True, "num_critics": 3}),
        )
    ),
    *(
        Case(
            "coplanner",
            "coplanner",
            "MuJoCo-MBPO-COPlanner/sac/sac.py",
            tuple(f"{name}_{k}" for k in range(3) for name in ("action", "noise", "member")),
            MODEL
            | {"plans": 4, "ahead": 3, "plan_discount": 0.8, "caution": 10.0, "curiosity": 10.0}
            | {"dynamics_hidden": (8,) * 4},
            phase=f"plan_in_the_{place}",
            variant=variant,
            aims=("observations",),
            updates=4,
        )
        for place, variant in (("model", "cautious"), ("environment", "curious"))
    ),
    Case(
        "mcq",
        "mcq",
        "offlinerl/algo/modelfree/MCQ.py",
        ("vae", "policy", "next", "policy_samples", "pseudo", "policy"),
        adapted=(
            EPSILON,
            "pseudo targets clamped to at least 0 -> not clamped",
            "separate action samples for each critic -> the same samples for both",
            "in our code: separate samples for temperature and policy losses -> one sample",
            "the reference reports no loss except the VAE's",
        ),
    ),
    *(
        Case(
            "coptidice",
            "osrl",
            "osrl/algorithms/coptidice.py",
            ("observation_noise", "action_noise"),
            {"as_released": True, "target_cost": 2.0, "episode_steps": 300, "alpha": alpha}
            | {"initial_share": 0.05},
            variant=variant,
            adapted=("noise is scaled by the data's standard deviation -> the batch's",),
            aims=("rewards", "costs", "discount"),
        )
        for variant, alpha in (("", 0.5), ("close", 5.0))
    ),
    Case(
        "cpq",
        "osrl",
        "osrl/algorithms/cpq.py",
        ("vae", "next", "next_cost", "ood", "policy"),
        RELEASED | {"multiplier_lr": 0.01, "likely_share": 0.75},
        shifts=COSTS,
        aims=("rewards", "discount", "costs"),
    ),
    Case(
        "bcq_lag",
        "osrl",
        "osrl/algorithms/bcql.py",
        ("vae", "next", "next_cost", "proposed"),
        RELEASED,
        shifts=COSTS,
        aims=("rewards", "discount", "costs"),
    ),
    *(
        Case(
            "arsq",
            "arsq",
            "ARSQ-main/d4rl/arsq_d4rl/alg/sqar.py",
            config=BINS | config,
            variant=variant,
            phase="act" if variant == "act" else "update",
            adapted=(MEAN,) if "imitation" in config else (),
        )
        for variant, config in (
            ("", {"imitation_temperature": 0.5}),
            ("one_level", {"levels": 1, "bins": 41, "min_gap": 0.0}),
            ("margin", {"imitation": "margin", "min_gap": 0.0}),
            ("leading", {"imitation": "margin", "min_gap": 1.0, "alpha": 1.0}),
            ("act", {}),
        )
    ),
    *(
        Case(
            "cqn",
            "arsq",
            "ARSQ-main/d4rl/arsq_d4rl/alg/cqn.py",
            config=RETURNS | config,
            variant=variant,
            phase="act" if variant == "act" else "update",
            adapted=adapted,
        )
        for variant, config, adapted in (
            ("as_released", {"as_released": True}, (BIASES,)),
            ("act", {}, (BIASES, "targets bootstrap after terminations -> they do not")),
            ("", {"levels": 1}, (BIASES, "targets bootstrap after terminations -> they do not")),
        )
    ),
    Case(
        "cqn",
        "cqn",
        "cqn_dmc.py",
        config=RETURNS | {"margin_weight": 0.0, "dominance_weight": 0.0},
        adapted=(BIASES, "images with an encoder and augmentation -> vectors"),
    ),
)
# one case per set of inputs; its numbers are recorded
RECORDED_CASES = tuple({case.inputs: case for case in reversed(CASES)}.values())
WITHOUT = {  # algorithms without a case, and the reason
    "gr_rl": "there is no public code; a test compares its update with plain PyTorch",
    "one_step": "its loss equals that of rl100's one-step head (see its row); a test checks this",
    "mbpo": "jannerm/mbpo needs TensorFlow 1; mbpo shares fit, rollouts and updates with mopo",
    "sparse_policy": "a test compares its fit, in common/models/sparse.py, with pysindy (STLSQ)",
    "sac_lag": "liuzuxin/FSRL differs (see its docstring); a test compares it with plain PyTorch",
    "msg": "google-research/google-research: jrl/agents/msg was not run: it needs acme and reverb",
}
