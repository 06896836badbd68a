"""Tests of the messages for unknown names."""

from dataclasses import fields

import pytest

from offline_rl.algorithms.common import registry
from offline_rl.utils.errors import UserError
from offline_rl.utils.options import build
from offline_rl.utils.words import unknown

RENAMED = {  # names of options in earlier versions -> names now
    "blending": "temporal_ensemble_coeff",
    "centre_rewards": "center_rewards",
    "critics": "num_critics",
    "decoder_layers": "num_decoder_layers",
    "executed": "n_action_steps",
    "heads": "num_heads",
    "hidden_units": "dim_feedforward",
    "history": "n_obs_steps",
    "keypoints": "num_keypoints",
    "layers": "num_layers",
    "least_deviation": "min_std",
    "max_norm": "max_grad_norm",
    "mixing": "offline_fraction",
    "noise_levels": "num_train_timesteps",
    "normalise_observations": "normalize_observations",
    "normalise_returns": "normalize_returns",
    "policy_samples": "num_policy_samples",
    "predicts": "prediction_type",
    "rounds": "num_inference_steps",
    "samples": "num_samples",
    "size": "dim_model",
    "style": "latent_dim",
    "style_layers": "num_vae_encoder_layers",
    "subset": "num_min_critics",
    "value_warm_up": "value_warmup",
    "warm_up": "warmup_steps",
    "warm_up_by": "warmup_policy",
    "warm_up_updates": "num_warmup_updates",
    "window": "horizon",
}
CONFIGS = {
    f"{name}{'.online' * online}": cls.Online if online else cls.Config
    for name in registry.algorithm_names()
    for cls in [registry.algorithm_class(name)]
    for online in (False, True)
    if not online or cls.Online is not None
}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_a_renamed_option_is_refused_with_its_new_name(old: str, new: str) -> None:
    configs = {
        name: cls
        for name, cls in CONFIGS.items()
        if new in (names := {f.name for f in fields(cls)}) and old not in names
    }
    assert configs
    for name, cls in configs.items():
        with pytest.raises(UserError, match=f"unknown option .*; did you mean .*{new}") as error:
            build(cls, {old: 1}, "algorithm.")
        assert f"algorithm.{new}" in str(error.value), name


def test_the_horizon_of_a_decision_transformer_is_its_context_length() -> None:
    with pytest.raises(UserError, match=r"did you mean algorithm\.context_length\?"):
        build(CONFIGS["decision_transformer"], {"window": 20}, "algorithm.")


@pytest.mark.parametrize("old", ["noise", "action"])
def test_an_earlier_value_of_the_prediction_type_is_refused_with_the_values_now(old: str) -> None:
    with pytest.raises(UserError, match=r"expected one of .*(epsilon.*sample|sample.*epsilon)"):
        build(CONFIGS["diffusion_policy"], {"prediction_type": old}, "algorithm.")


def test_a_misspelled_name_gets_the_similar_ones_and_others_get_a_short_list() -> None:
    assert (
        unknown("task", "hoper", ["hopper", "ant"]) == "unknown task 'hoper'; did you mean hopper?"
    )
    assert unknown("task", "xyz", ["hopper", "ant"]) == "unknown task 'xyz'; there are ant, hopper"
    names = [f"task_{n}" for n in range(61)]
    assert unknown("task", "xyz", names) == "unknown task 'xyz'; --help lists the valid names"
