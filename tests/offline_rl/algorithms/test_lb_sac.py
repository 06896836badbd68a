"""LB-SAC: learning rates scale with the batch, the loss is a mean, and `train` uses its batch."""

import pytest
import torch
from by_hand import SMALL, advance, made_batch, start, target_after
from prepared import prepare
from small_data import save_small

from offline_rl.algorithms.lb_sac import LBSAC
from offline_rl.algorithms.sac_n import SACN


@pytest.mark.parametrize(("batch_size", "factor"), [(256, 1), (1024, 2), (10_000, 6.25)])
def test_rates_grow_with_the_root_of_the_batch(batch_size, factor):
    adams = start(LBSAC, batch_size=batch_size, actor_lr=1e-4, **SMALL).algorithm.optimizers()
    assert adams["policy"].lr == pytest.approx(1e-4 * factor)
    assert adams["critic"].lr == adams["log_alpha"].lr == pytest.approx(3e-4 * factor)


def test_the_critic_loss_is_a_mean_over_critics():
    """The critic gradient is SAC-N's divided by N; the policy's is SAC-N's."""
    config = {"num_critics": 4, "init": "fan_out", **SMALL}
    ours, metrics = advance(start(LBSAC, batch_size=256, **config), made_batch())
    sac_n, theirs = advance(start(SACN, **config), made_batch())
    for name, first in sac_n.optimizer["critic"]["first"].items():
        torch.testing.assert_close(4 * ours.optimizer["critic"]["first"][name], first)
    for name, value in sac_n.params["policy"].items():
        torch.testing.assert_close(ours.params["policy"][name], value)
    assert metrics["critic_loss"] == theirs["critic_loss"]


def test_trains_with_its_default_batch_size(tmp_path):
    keys = {"task": "none", "dataset": str(save_small(tmp_path / "small.npz"))}
    assert prepare({"algorithm": "lb_sac", **keys}).run.method.cfg.batch_size == 10_000
    assert (
        prepare({"algorithm": "lb_sac", "batch_size": 500, **keys}).run.method.cfg.batch_size == 500
    )


def test_bootstraps_after_a_truncation_but_not_after_a_termination():
    assert target_after(LBSAC, terminated=True, **SMALL) == 1
    assert target_after(LBSAC, terminated=False, **SMALL) != 1
