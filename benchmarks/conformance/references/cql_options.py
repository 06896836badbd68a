"""CQL's option names in young-geng's code, which Cal-QL's authors also use, and in ours."""

OPTIONS = {  # reference's name: our name
    "discount": "discount",
    "backup_entropy": "backup_entropy",
    "policy_lr": "policy_lr",
    "qf_lr": "critic_lr",
    "soft_target_update_rate": "tau",
    "cql_n_actions": "num_samples",
    "cql_temp": "temperature",
    "cql_min_q_weight": "weight",
    "cql_max_target_backup": "max_target_backup",
    "cql_clip_diff_min": "clip_diff_min",
    "cql_clip_diff_max": "clip_diff_max",
}
