"""Training of Diffusion Policy's U-Net: sizes, a plain PyTorch version and the authors' network.

Chunks of 16 actions after 2 observations, 100 noise levels, AdamW, a moving average after every
update. The plain version follows the style of real-stanford/diffusion_policy (workspace).
"""

from __future__ import annotations

import copy
import math
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.speed.clock import ACT, OBS, Clock, arrays, synchronizer
from benchmarks.speed.eager import plain_fault

N_OBS_STEPS, HORIZON, LEVELS = 2, 16, 100
# channel widths and batch size: the paper's on a GPU, smaller ones on a CPU
SIZES = {"cpu": ((64, 128), 128), "cuda": ((256, 512, 1024), 256)}


def settings(device: str) -> dict[str, Any]:
    """Return the settings of our `diffusion_policy`."""
    widths, batch_size = SIZES[device]
    return {"widths": widths, "batch_size": batch_size}


class ChunkSampler:
    """Sampler of chunks that lie within an episode, from tensors on the device."""

    def __init__(self, data: dict[str, Tensor], batch_size: int) -> None:
        self.data, self.batch_size = data, batch_size
        ends = torch.nonzero(data["timeouts"])[:, 0]
        device = ends.device
        inside = torch.ones(len(data["rewards"]), dtype=torch.bool, device=device)
        for k in range(HORIZON - 1):  # a chunk must end within its episode
            inside[ends - k] = False
        self.starts = torch.nonzero(inside)[:, 0]

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return observations [B, N_OBS_STEPS, OBS] and actions [B, HORIZON, ACT]."""
        device = self.starts.device
        first = self.starts[torch.randint(len(self.starts), (self.batch_size,), device=device)]
        rows = first[:, None] + torch.arange(HORIZON, device=device)
        return self.data["observations"][rows[:, :N_OBS_STEPS]], self.data["actions"][rows]


class Block(nn.Module):
    """Residual block: two convolutions with FiLM conditioning between them."""

    def __init__(self, inputs: int, outputs: int, condition: int) -> None:
        super().__init__()

        def convolution(size: int) -> nn.Sequential:
            layer = nn.Conv1d(size, outputs, 5, padding=2)
            return nn.Sequential(layer, nn.GroupNorm(8, outputs), nn.Mish())

        self.first, self.second = convolution(inputs), convolution(outputs)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * outputs))
        self.skip = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift = self.film(condition)[..., None].chunk(2, 1)
        return self.second(self.first(x) * scale + shift) + self.skip(x)


class UNet(nn.Module):
    """U-Net over chunk steps: chunk [B, T, A], times [B], observations [B, H, O] -> [B, T, A]."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.size = size = widths[0]
        self.time = nn.Sequential(nn.Linear(size, 4 * size), nn.Mish(), nn.Linear(4 * size, size))
        condition, sizes = size + N_OBS_STEPS * OBS, (ACT, *widths)
        self.down = nn.ModuleList(
            nn.ModuleList([Block(a, b, condition), Block(b, b, condition)])
            for a, b in zip(sizes, sizes[1:], strict=False)
        )
        self.narrow = nn.ModuleList(nn.Conv1d(w, w, 3, 2, 1) for w in widths[:-1])
        self.middle = nn.ModuleList(Block(widths[-1], widths[-1], condition) for _ in range(2))
        self.up = nn.ModuleList(
            nn.ModuleList([Block(2 * b, a, condition), Block(a, a, condition)])
            for a, b in zip(widths[-2::-1], widths[:0:-1], strict=True)
        )
        self.widen = nn.ModuleList(nn.ConvTranspose1d(w, w, 4, 2, 1) for w in widths[-2::-1])
        self.last = nn.Sequential(
            nn.Conv1d(size, size, 5, padding=2),
            nn.GroupNorm(8, size),
            nn.Mish(),
            nn.Conv1d(size, ACT, 1),
        )

    def forward(self, x: Tensor, times: Tensor, observations: Tensor) -> Tensor:
        half = self.size // 2
        rates = torch.exp(torch.arange(half, device=x.device) * (-math.log(10_000) / (half - 1)))
        angles = times[:, None] * rates
        embedding = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        condition = torch.cat([embedding, observations.flatten(1)], -1)
        x, skips = x.transpose(1, 2), []
        for k, (first, second) in enumerate(self.down):
            x = second(first(x, condition), condition)
            skips.append(x)
            x = self.narrow[k](x) if k < len(self.narrow) else x
        for block in self.middle:
            x = block(x, condition)
        for (first, second), widen in zip(self.up, self.widen, strict=True):
            x = widen(second(first(torch.cat([x, skips.pop()], 1), condition), condition))
        return self.last(x).transpose(1, 2)


class Learner:
    """Noise prediction with AdamW and a moving average of the parameters."""

    def __init__(self, net: Any, device: str) -> None:
        """Create the learner. net: called with noised chunks, times and observations."""
        self.net, self.average, self.done = net, copy.deepcopy(net), 0
        self.optimizer = torch.optim.AdamW(net.parameters(), 1e-4, (0.95, 0.999), weight_decay=1e-6)
        steps = torch.arange(LEVELS + 1, device=device) / LEVELS
        cosine = torch.cos((steps + 0.008) / 1.008 * torch.pi / 2) ** 2
        self.alpha_bar = torch.cumprod(1 - (1 - cosine[1:] / cosine[:-1]).clamp(max=0.999), 0)

    def train(self, batch: tuple[Tensor, Tensor]) -> None:
        observations, actions = batch
        noise = torch.randn_like(actions)
        times = torch.randint(LEVELS, (len(actions),), device=actions.device)
        alpha_bar = self.alpha_bar[times, None, None]
        x = alpha_bar.sqrt() * actions + (1 - alpha_bar).sqrt() * noise
        loss = F.mse_loss(self.net(x, times.float(), observations), noise)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_average()

    def step_average(self) -> None:
        decay = min(max(0.0, 1 - max(self.done, 1) ** -0.75), 0.9999)
        self.done += 1
        with torch.no_grad():
            for mean, new in zip(self.average.parameters(), self.net.parameters(), strict=True):
                mean.mul_(decay).add_(new, alpha=1 - decay)


def train_forever(clock: Clock, learner: Any, device: str) -> None:
    """Train until the harness ends the process."""
    data = {k: torch.from_numpy(v).to(device) for k, v in arrays().items()}
    sampler = ChunkSampler(data, SIZES[device][1])
    wait = synchronizer(device)
    clock.fault = partial(plain_fault, learner)
    while True:
        learner.train(sampler.sample())
        clock.tick(1, wait)


def run_eager(clock: Clock, device: str) -> None:
    """Train the plain PyTorch version."""
    train_forever(clock, Learner(UNet(SIZES[device][0]).to(device), device), device)


def run_authors(clock: Clock, checkout: str, device: str) -> None:
    """Train the network and moving average of a checkout of real-stanford/diffusion_policy."""
    sys.path.insert(0, checkout)
    from diffusion_policy.model.diffusion.conditional_unet1d import ConditionalUnet1D
    from diffusion_policy.model.diffusion.ema_model import EMAModel

    widths = SIZES[device][0]
    net = ConditionalUnet1D(ACT, None, OBS * N_OBS_STEPS, widths[0], list(widths), 5, 8, True)
    learner = Learner(AuthorsNetwork(net.to(device)), device)
    average = EMAModel(copy.deepcopy(net))
    learner.step_average = lambda: average.step(net)  # type: ignore[method-assign]
    train_forever(clock, learner, device)


class AuthorsNetwork(nn.Module):
    """Wrapper that passes observations to the authors' network in its format."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, times: Tensor, observations: Tensor) -> Tensor:
        return self.net(x, times, global_cond=observations.flatten(1))
