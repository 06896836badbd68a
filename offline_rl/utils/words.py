"""The sentence for a name that does not exist, with what may be meant by it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 30  # names that a sentence lists
SYNONYMS = {  # what it is here -> what it is called elsewhere
    "discount": "gamma discount_factor",
    "seeds": "seed random_seed num_seeds random_state",
    "num_updates": "steps num_steps n_steps max_steps train_steps updates epochs num_epochs "
    "iterations gradient_steps max_timesteps total_timesteps",
    "num_env_steps": "env_steps online_steps online_iterations",
    "batch_size": "batch bs minibatch_size",
    "task": "env env_id env_name environment",
    "dataset": "data data_path dataset_path dataset_id",
    "algorithm": "algo agent method",
    "lr": "learning_rate",
    "actor_lr": "lr learning_rate policy_lr",
    "policy_lr": "lr learning_rate actor_lr",
    "critic_lr": "lr learning_rate",
    "tau": "polyak soft_target_update_rate target_update_rate",
    "num_critics": "n_critics ensemble_size num_qs critics",
    "hidden": "hidden_dim hidden_dims hidden_size hidden_sizes layers",
    "policy_hidden": "hidden hidden_dim hidden_dims hidden_size hidden_sizes layers",
    "critic_hidden": "hidden hidden_dim hidden_dims hidden_size hidden_sizes layers",
    "horizon": "chunk_size prediction_horizon pred_horizon horizon_steps window",
    "n_action_steps": "action_steps act_steps action_horizon executed",
    "n_obs_steps": "obs_steps obs_horizon observation_horizon history",
    "num_inference_steps": "inference_steps num_inference_timesteps num_sampling_steps rounds "
    "denoising_steps sampling_steps",
    "num_train_timesteps": "num_diffusion_iters diffusion_steps n_timesteps noise_levels "
    "denoising_steps",
    "prediction_type": "predict_epsilon parameterization predicts",
    "process": "noise_scheduler noise_scheduler_type scheduler noise_schedule beta_schedule",
    "sampler": "noise_scheduler noise_scheduler_type scheduler",
    "network": "model model_type backbone noise_pred_net",
    "widths": "down_dims hidden_dim hidden_dims hidden_sizes n_layer n_layers n_emb",
    "time_size": "diffusion_step_embed_dim time_dim time_embed_dim",
    "num_heads": "n_head n_heads heads",
    "dim_model": "d_model hidden_dim embed_dim size",
    "dim_feedforward": "hidden_units",
    "num_layers": "n_encoder_layers enc_layers layers",
    "num_decoder_layers": "n_decoder_layers dec_layers decoder_layers",
    "latent_dim": "style",
    "num_vae_encoder_layers": "n_vae_encoder_layers style_layers",
    "mask_ends": "do_mask_loss_for_padding mask_padding",
    "dropout": "p_drop_emb p_drop_attn",
    "num_warmup_updates": "lr_warmup_steps warmup_steps scheduler_warmup_steps num_warmup_steps warm_up_updates",
    "ema_max": "ema_decay",
    "encoder": "vision_backbone obs_encoder image_encoder",
    "num_keypoints": "spatial_softmax_num_keypoints num_kp keypoints",
    "crop": "crop_shape crop_ratio random_crop",
    "episodes": "num_episodes max_train_episodes num_demos n_demos",
    "observation_keys": "obs_keys cameras camera_names image_keys input_features",
    "eval_every": "eval_freq eval_interval evaluate_every",
    "eval_episodes": "n_episodes n_eval_episodes num_eval_episodes",
    "checkpoint_every": "save_every save_freq save_interval",
    "out": "log_dir logdir output save_dir outdir out_dir output_dir runs_dir run_dir",
    "name": "exp_name run_name",
    "tracker": "logger log wandb use_wandb",
    "device": "gpu cuda",
    "precision": "dtype amp",
    "utd": "utd_ratio updates_per_step",
    "warmup_steps": "learning_starts start_steps warmup warm_up",
    "weight": "min_q_weight cql_alpha conservative_weight",
    "expectile": "iql_tau quantile",
    "beta": "inverse_temperature iql_beta",
    "normalize_observations": "normalize normalize_states normalise_observations",
    "temporal_ensemble_coeff": "temporal_ensembling temporal_agg blending",
    "num_min_critics": "num_min_qs critic_subsample_size min_q_heads subset",
    "min_std": "std_min least_deviation",
    "center_rewards": "centre_rewards",
    "num_samples": "samples cql_n_actions n_actions sample_size",
    "num_policy_samples": "policy_samples",
    "offline_fraction": "mixing mixing_ratio offline_ratio",
    "warmup_policy": "warm_up_by",
    "value_warmup": "value_warm_up n_critic_warmup_itr",
    "max_grad_norm": "max_norm clip_grad grad_clip_norm",
    "context_length": "window seq_len max_length K",
    "normalize_returns": "normalize_reward normalize_rewards normalise_returns",
}


def meant(word: str) -> list[str]:
    """What is called so elsewhere."""
    return [here for here, elsewhere in SYNONYMS.items() if word in elsewhere.split()]


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The sentence for a name that does not exist: those near it, or that mean the same elsewhere.

    Of names with dots the last parts are compared, and others of the same group go before the rest.
    """
    known = sorted(known)
    group, _, word = name.rpartition(".")
    ends: dict[str, list[str]] = {}
    for each in known:
        ends.setdefault(each.rpartition(".")[2], []).append(each)
    alike = dict.fromkeys((word, word.lower(), *meant(word.lower())))
    near = [end for end in alike if end in ends]
    near = near or difflib.get_close_matches(word, ends, 3)
    found = [each for end in near for each in ends[end]]
    found = [each for each in found if group and each.rpartition(".")[0] == group] or found
    if found:
        return f"unknown {kind} {name!r}; did you mean {' or '.join(found[:3])}?"
    if not known or len(known) > SHOWN:
        return f"unknown {kind} {name!r}; --help tells those that there are"
    return f"unknown {kind} {name!r}; there are {', '.join(known)}"
