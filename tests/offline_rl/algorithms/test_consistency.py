"""Consistency Policy: boundary conditions, losses by hand, and initialization of the student."""

import math

import pytest
import torch
from by_hand import Recorded, close, start
from test_diffusion_policy import SMALL, chunks, forks

import policies
from offline_rl.algorithms.common.noising.edm import denoise, distance, heun_step, jump
from offline_rl.algorithms.consistency import Config, Consistency
from offline_rl.algorithms.diffusion_policy import Config as TeacherConfig
from offline_rl.algorithms.diffusion_policy import DiffusionPolicy
from offline_rl.training.train import distill, train
from offline_rl.utils.errors import UserError
from offline_rl.utils.trees import flatten
from policies.heads.schedules import SIGMAS, boundary_coefficients, jumps, karras, sample, sigma
from policies.spec import Spec

OWN = {
    k: v
    for k, v in SMALL.items()
    if k not in ("num_train_timesteps", "sampler", "num_inference_steps")
}


def sines(seen, x, times, *rest):
    """Return a function of all inputs."""
    return torch.sin(3 * x) + 0.1 * times[..., None, None]


def test_a_jump_of_length_zero_or_from_the_lowest_noise_is_the_identity():
    x, some = torch.randn(6, 4, 2), torch.rand(6) * 10 + 0.1
    least = torch.full((6,), SIGMAS[0])
    assert torch.allclose(jump(sines, None, x, some, some, None), x, atol=1e-6)
    assert torch.allclose(denoise(sines, None, x, least), x, atol=1e-6)
    assert torch.allclose(jump(sines, None, x, least, least, None), x, atol=1e-6)


def test_noise_levels_fall_from_80_to_a_fiftieth():
    assert (sigma(0.0), sigma(1.0)) == pytest.approx((80, 0.02))
    assert [sigma(k / 79) for k in (27, 54)] == pytest.approx([12.0, 0.885], rel=5e-3)


def test_heun_step_has_second_order():
    """The denoiser of data N(0, v) is x v / (v + sigma^2); x / sqrt(v + sigma^2) is constant."""
    spread, x = 0.3**2, torch.full((1, 1, 1), 0.7)

    def perfect(seen, scaled, time):
        now = (time[:, None, None] / 250).exp()
        skip, out, scale = boundary_coefficients(now)
        x = scaled / scale
        return (x * spread / (spread + now**2) - skip * x) / out

    ends = [(1.0, e) for e in (0.9, 0.95)]
    errors = []
    for begin, end in ends:
        found = heun_step(perfect, None, x, torch.tensor([begin]), torch.tensor([end]))
        true = 0.7 * math.sqrt((spread + end**2) / (spread + begin**2))
        errors.append(abs(found.item() - true))
    assert errors[0] < 1e-4
    assert errors[1] < errors[0] / 5


def test_the_teachers_sampler_reaches_the_chunk_of_an_exact_network():
    chunk = torch.full((1, 4, 2), 0.4)

    def knows(scaled, time):
        skip, out, scale = boundary_coefficients(math.exp(time / 250))
        return (chunk - skip * scaled / scale) / out

    noise = torch.randn(3, 1, 4, 2)
    left = 0.02 * noise[:, 0] - 0.02 / 80 * chunk  # the least noise stays
    assert (sample(karras(10), knows, noise) - chunk - left).abs().max() < 1e-4


@pytest.mark.parametrize("unit", [True, False])
def test_a_table_of_three_jumps_is_the_jumps_and_noise_between_them(unit: bool):
    noise = torch.randn(5, 3, 4, 2)
    table = jumps(3, 80, unit)

    def network(x, time):
        return sines(None, x, torch.full((5,), time))

    found = sample(table, network, noise)
    least = torch.full((5,), SIGMAS[0])
    x = noise[:, 0] * (1 if unit else 80)
    for k, place in enumerate((0, 27, 54)):
        deviation = torch.full((5,), sigma(place / 79))
        x = jump(sines, None, x, deviation, least, None).clip(-1, 1)
        if k < 2:
            x = x + sigma((27, 54)[k] / 79) * noise[:, k + 1]
    assert (found - x).abs().max() < 1e-4


def test_the_number_of_jumps_is_limited_by_the_bins():
    """More jumps would start below the lowest noise level, which is not trained."""
    times = [row[0] for row in jumps(80, 80, True)]
    assert (times[0], times[-1]) == pytest.approx((250 * math.log(80), 250 * math.log(0.02)))
    assert Config(num_inference_steps=80).num_inference_steps == 80
    with pytest.raises(ValueError, match="num_inference_steps=81 is not between 1 and 80"):
        Config(num_inference_steps=81)


def test_distances_equal_those_of_paper_and_code():
    a, b = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]]), torch.zeros(1, 2, 2)
    c = 0.00054 * 2
    assert distance(a, b, None, "norm").mean().item() == pytest.approx(math.hypot(5, c) - c)
    codes = [math.sqrt(e**4 + c**2) - c for e in (3, 0, 0, 4)]
    assert distance(a, b, None, "elements").mean().item() == pytest.approx(sum(codes) / 4)


@pytest.mark.parametrize("levels", [1, 3])
def test_losses_equal_those_of_the_paper(levels: int):
    """CTM: jumps from t and from t + 1 end in the same point. DSM: jumps end at the data.

    Points are compared at the lowest noise. Each of several levels has its own noise.
    """
    state = start(Consistency, 20, dropout=0.0, levels=levels, **OWN)
    shape = (levels, 8)
    for k, value in state.params["model"].items():
        state.params["model"][k] = value + 0.05 * torch.randn_like(value)
    batch, random = chunks(), Recorded()
    _, metrics = state.algorithm.update(state, batch, 0)
    a, s = batch.actions, batch.observations
    t = random.integers(79, shape)
    end_place = t + 1 + (random.uniform(shape) * (79 - t)).floor()
    assert ((end_place > t) & (end_place <= 79)).all()
    noise = random.normal((levels, *a.shape))
    now, near, end = (sigma(p / 79) for p in (t, t + 1, end_place))
    least = torch.full(shape, 0.02)

    def denoise(net, x, deviation, *until):
        skip, out, scale = (c[..., None, None] for c in boundary_coefficients(deviation))
        rest = [None, 250 * until[0].log()] if until else []
        return skip * x + out * net(s, scale * x, 250 * deviation.log(), *rest)

    def G(x, begin, stop):
        ratio = (stop / begin)[..., None, None]
        return ratio * x + (1 - ratio) * denoise(state.model, x, begin, stop)

    x = a + now[..., None, None] * noise
    slope = (x - denoise(state.teacher, x, now)) / now[..., None, None]
    step = (near - now)[..., None, None]
    closer = x + step * slope
    there = (closer - denoise(state.teacher, closer, near)) / near[..., None, None]
    closer = x + step * (slope + there) / 2
    mine, theirs = G(G(x, now, end), end, least), G(G(closer, near, end), end, least)
    close(metrics["ctm_loss"], distance(mine, theirs, None, "elements").mean())
    even = sigma(0.7 * random.uniform(shape))
    deviation = torch.where(
        torch.arange(8) % 2 == 0, even, (1.2 * random.normal(shape) - 1.2).exp()
    )
    noised = a + deviation[..., None, None] * random.normal((levels, *a.shape))
    weight = (deviation**2 + 0.25) / (deviation * 0.5) ** 2
    found = G(noised, deviation, least)
    close(
        metrics["dsm_loss"], (weight[..., None, None] * distance(found, a, None, "elements")).mean()
    )
    close(metrics["policy_loss"], metrics["ctm_loss"] + metrics["dsm_loss"])


@pytest.mark.parametrize("network", ["mlp", "unet"])
def test_an_initial_student_equals_its_teacher_for_every_end_of_the_jump(network: str):
    own = OWN | {"network": network, "widths": (16, 16)}
    torch.manual_seed(0)
    teacher = DiffusionPolicy(Spec((3,), 2), TeacherConfig(process="edm", **own))
    torch.manual_seed(1)
    student = Consistency(Spec((3,), 2), Config(**own))
    given = flatten(teacher.initial()) | {"counters/update": torch.tensor(7)}
    taken = student.initialize_from(flatten(student.initial()), given)
    assert taken["counters/update"] == 7
    heads = {}
    for name in ("teacher", "model", "policy"):
        head = heads[name] = student.modules[name]
        start = f"params/{name}/"
        head.load_state_dict({k[len(start) :]: v for k, v in taken.items() if k.startswith(start)})
    seen, x, times = torch.randn(5, 2, 3), torch.randn(5, 4, 2), 100 * torch.rand(5)
    expected = teacher.modules["policy"](seen, x, times)
    assert torch.allclose(heads["teacher"](seen, x, times), expected, atol=1e-6)
    for until in (torch.zeros(5), torch.full((5,), 90.0)):
        for name in ("model", "policy"):
            assert torch.allclose(heads[name](seen, x, times, None, until), expected, atol=1e-5)


def test_in_a_transformer_the_end_of_a_jump_is_a_token_without_a_position():
    """The token precedes those of the observations, whose positions do not change."""
    own = OWN | {"network": "transformer", "widths": (8,), "num_heads": 2, "time_size": None}
    teacher = DiffusionPolicy(Spec((3,), 2), TeacherConfig(process="edm", **own)).initial()
    student = Consistency(Spec((3,), 2), Config(**own))
    given = flatten(teacher) | {"counters/update": torch.tensor(0)}
    taken = student.initialize_from(flatten(student.initial()), given)
    time, first, second = given["params/policy/network.memory_place"]
    expected = torch.stack([time, torch.zeros(8), first, second])
    assert torch.equal(taken["params/model/network.memory_place"], expected)


def test_a_distilled_policy_takes_one_step(tmp_path):
    hyper = {f"algorithm.{k}": [*v] if isinstance(v, tuple) else v for k, v in OWN.items()}
    keys = {"out": str(tmp_path), "tracker": "none", "show": False}
    keys |= {"dataset": forks(rate_hz=10.0)}
    common = {"task": "none", "seeds": 2, "num_updates": 4}
    made = train(
        algorithm="diffusion_policy", **{"algorithm.process": "edm"}, **hyper, **common, **keys
    )
    student = distill(run=made.path, num_updates=3, **keys)
    assert student.path == tmp_path / "none_in_memory" / "consistency" / "from-diffusion_policy"
    policy = policies.load(student.path / "seed_1" / "policy.bundle")
    assert policy.module.noise_shape == (1, 4, 1)
    with pytest.raises(UserError, match=r"network must be mlp, as in the teacher's run"):
        distill(run=made.path, num_updates=3, **{"algorithm.network": "unet"}, **keys)
    for other, words in (
        (forks(rate_hz=30.0), "rate_hz: the policy has 10, here it is 30"),
        (forks(actions=2), r"action_low=\[-0\.6.*\] has 1 numbers, but .* has 2 actions"),
    ):
        with pytest.raises(UserError, match=words):
            distill(run=made.path, num_updates=3, name="other", **(keys | {"dataset": other}))
    with pytest.raises(UserError, match=r"needs a teacher. Use offline-rl distill"):
        train(algorithm="consistency", **common, **keys)


def test_a_run_without_edm_cannot_be_a_teacher(tmp_path):
    hyper = {f"algorithm.{k}": [*v] if isinstance(v, tuple) else v for k, v in SMALL.items()}
    keys = {"out": str(tmp_path), "tracker": "none", "show": False, "dataset": forks()}
    made = train(algorithm="diffusion_policy", task="none", num_updates=2, **hyper, **keys)
    told = r"algorithm.process=ddpm\) cannot be the teacher: .* algorithm.process=edm"
    with pytest.raises(UserError, match=told):
        distill(run=made.path, num_updates=3, **keys)
