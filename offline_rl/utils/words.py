"""Messages for unknown names, with suggestions: similar names, and our names for their synonyms."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

SHOWN = 60  # maximum number of names that a message lists
SYNONYMS = {  # our name -> names in other libraries and in earlier versions of this one
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
    "num_warmup_updates": "lr_warmup_steps warmup_steps scheduler_warmup_steps num_warmup_steps "
    "warm_up_updates",
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


def find_synonyms(word: str) -> list[str]:
    """Return our names for an option that other libraries call `word`."""
    return [name for name, synonyms in SYNONYMS.items() if word in synonyms.split()]


def unknown(kind: str, name: str, names: Iterable[str]) -> str:
    """Return the message for an unknown name, with suggestions: synonyms or similar names.

    Of names with dots (`group.option`), the parts after the last dot are compared. If names of the
    same group match, only these are suggested.
    """
    names = sorted(names)
    group, _, word = name.rpartition(".")
    by_end: dict[str, list[str]] = {}
    for candidate in names:
        by_end.setdefault(candidate.rpartition(".")[2], []).append(candidate)
    synonyms = dict.fromkeys((word, word.lower(), *find_synonyms(word.lower())))
    ends = [end for end in synonyms if end in by_end]
    ends = ends or difflib.get_close_matches(word, by_end, 3)
    similar = [candidate for end in ends for candidate in by_end[end]]
    similar = [x for x in similar if group and x.rpartition(".")[0] == group] or similar
    if similar:
        return f"unknown {kind} {name!r}; did you mean {' or '.join(similar[:3])}?"
    if not names or len(names) > SHOWN:
        return f"unknown {kind} {name!r}; --help lists the valid names"
    return f"unknown {kind} {name!r}; there are {', '.join(names)}"
