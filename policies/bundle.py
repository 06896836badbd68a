"""The policy bundle: the file with a trained policy. Loading it never executes code from the file.

A bundle is an uncompressed ZIP archive. Format 5 has the members:

    manifest.json            {format, spec, policy: {kind, arguments}, composition, normalizers,
                             provenance, sha256}
    weights.safetensors      the policy's parameters, float32
    normalizers.safetensors  mean and scale of each normalizer: observations/<channel>/… maps a raw
                             vector channel to the network's input; actions/… maps actions in
                             [-1, 1] to the network's output
    golden.safetensors       a recorded input and the policy's output for it:
                             observations/<channel> [B, n_obs_steps, …]; noise, unless the policy is
                             deterministic; memory/<name> [B, …], the memory at the start of an
                             episode, if the policy has one; chunks [T, B, chunk_size, A];
                             composed [B, chunk_size, A], the first chunks of the policy and its
                             base together, for the base's recorded observations
    graphs/<name>.onnx       the network for other runtimes, if it was exported
    guardian.safetensors     the in-distribution score of the data, if it was exported; see
                             `policies.runtimes.guardian`
    base.bundle              the frozen base policy, if the policy was trained on a bundle

`composition` is {how, noise_scale} for a policy that acts on a base policy, otherwise {}.
`normalizers` gives the kind of each normalizer: {observations: {channel: kind}, actions: kind}.
`sha256` has one checksum per member. The checksum of manifest.json covers the manifest without the
entry `sha256["manifest.json"]`. The coefficients of a diffusion sampler are in the policy's
arguments.

Reading a bundle needs numpy and safetensors only. torch is imported when a policy runs in torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from policies.channels import flatten, get
from policies.normalizer import Normalizer
from policies.runtimes.guardian import Guardian
from policies.spec import Spec

FORMAT = 5
DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, EOFError, RuntimeError)
WEIGHTS, NORMALIZERS, GOLDEN = MEMBERS = (
    "weights.safetensors",
    "normalizers.safetensors",
    "golden.safetensors",
)
GRAPHS, BASE, GUARDIAN = "graphs/", "base.bundle", "guardian.safetensors"
BUNDLE = "policy.bundle"  # name of the bundle in the folder of a training seed
MANIFEST: dict[str, Any] = {
    "format": int,
    "spec": dict,
    "policy": {"kind": str, "arguments": dict},
    "composition": dict,
    "normalizers": {"observations": dict, "actions": str},
    "provenance": dict,
    "sha256": dict,
}


class BundleError(ValueError):
    """Raised for a bundle that is damaged, of another format, or inconsistent."""


@dataclass(frozen=True)
class Golden:
    """A recorded input and the policy's output for it, which every runtime must reproduce."""

    observations: dict[str, np.ndarray]  # by channel, [B, n_obs_steps, *shape], raw
    noise: np.ndarray | None  # [B, *noise_shape]; None for a deterministic policy
    # [T, B, chunk_size, A] in [-1, 1]; T = 2 consecutive decisions with this input for a policy
    # with a memory, otherwise T = 1
    chunks: np.ndarray
    memory: Mapping[str, np.ndarray] = field(default_factory=dict)  # [B, …], initial, by name
    # [B, chunk_size, A] in [-1, 1]: first chunks of the policy together with the base in the
    # bundle, for the last of the base's recorded observations and the seed 0
    composed: np.ndarray | None = None


@dataclass(frozen=True)
class Composition:
    """The way in which a policy acts on its frozen base policy; see `policies.composed`."""

    how: Literal["residual", "noise"]  # adds to the base's actions, or chooses its initial noise
    noise_scale: float = 1.0  # with how=noise: the initial noise for the action 1

    def __post_init__(self) -> None:
        if self.how not in ("residual", "noise") or not 0 < self.noise_scale < np.inf:
            raise ValueError(f"{self} is not a valid composition")


@dataclass(frozen=True)
class Bundle:
    """The contents of a policy bundle."""

    spec: Spec
    kind: str  # class name of the head in policies.heads
    arguments: dict[str, Any]  # keyword arguments of the head's constructor
    weights: dict[str, np.ndarray]
    normalizers: Mapping[str, Normalizer]  # by vector channel; or one for all of them
    provenance: dict[str, Any] = field(default_factory=dict)  # run, data, versions, scores
    actions: Normalizer | None = None  # from [-1, 1] to network output; None: identity
    graphs: Mapping[str, bytes] = field(default_factory=dict)  # ONNX models by name
    composition: Composition | None = None  # how the policy acts on its base; None: it has none
    guardian: Guardian | None = None  # in-distribution score of observations and actions
    base: Bundle | None = None  # base policy, unless it is the user's code
    golden: Golden | None = None  # added by `policies.golden.seal`, required by `write`

    def __post_init__(self) -> None:
        vectors = {channel.name: channel.shape for channel in self.spec.vectors}
        if isinstance(self.normalizers, Normalizer):
            object.__setattr__(self, "normalizers", dict.fromkeys(vectors, self.normalizers))
        if self.actions is None:
            object.__setattr__(self, "actions", Normalizer.identity((self.spec.action_dim,)))
        if self.base is not None and self.composition is None:
            raise ValueError("the bundle contains a base policy, but it has no composition")
        shapes = {name: normalizer.mean.shape for name, normalizer in self.normalizers.items()}
        if shapes != vectors:
            raise ValueError(
                f"the normalizers are for {shapes}, but the vector channels are {vectors}"
            )
        assert self.actions is not None
        shape = self.actions.mean.shape
        if shape != (self.spec.action_dim,) or self.actions.kind == "z-score":
            raise ValueError(
                f"the action normalizer is {self.actions.kind} of shape {list(shape)}. Use min-max "
                f"or identity of shape [{self.spec.action_dim}]"
            )


def write(path: str | Path, bundle: Bundle) -> None:
    """Write `bundle` to `path`. The write is not atomic. Equal bundles give equal bytes.

    Raises BundleError if the bundle has no golden output (see `policies.golden.seal`).
    """
    Path(path).write_bytes(pack(bundle))


def pack(bundle: Bundle) -> bytes:
    """Return the bytes of a bundle file."""
    golden, actions = bundle.golden, bundle.actions
    if golden is None or (bundle.base is not None and golden.composed is None):
        raise BundleError("the bundle has no golden output. Attach it with policies.golden.seal")
    assert actions is not None
    normalizers = {f"observations/{name}": each for name, each in bundle.normalizers.items()}
    normalizers["actions"] = actions
    recorded = flatten({"observations": golden.observations, "memory": golden.memory})
    optional = {"noise": golden.noise, "composed": golden.composed}
    recorded |= {name: value for name, value in optional.items() if value is not None}
    contents = {
        WEIGHTS: save_tensors(bundle.weights),
        NORMALIZERS: save_tensors(
            {f"{name}/mean": each.mean for name, each in normalizers.items()}
            | {f"{name}/scale": each.scale for name, each in normalizers.items()}
        ),
        GOLDEN: save_tensors({**recorded, "chunks": golden.chunks}),
        **{f"{GRAPHS}{name}.onnx": graph for name, graph in bundle.graphs.items()},
        **({} if bundle.base is None else {BASE: pack(bundle.base)}),
        **({} if bundle.guardian is None else {GUARDIAN: save_tensors(bundle.guardian.tensors())}),
    }
    manifest = {
        "format": FORMAT,
        "spec": bundle.spec.to_json(),
        "policy": {"kind": bundle.kind, "arguments": bundle.arguments},
        "composition": {} if bundle.composition is None else asdict(bundle.composition),
        "normalizers": {
            "observations": {name: each.kind for name, each in bundle.normalizers.items()},
            "actions": actions.kind,
        },
        "provenance": bundle.provenance,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
    }
    manifest = json.loads(json.dumps(manifest, allow_nan=False))  # turns tuples into lists
    manifest["sha256"]["manifest.json"] = manifest_sha256(manifest)
    text, file = json.dumps(manifest, indent=2).encode(), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {"manifest.json": text, **contents}.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return file.getvalue()


def read(path: str | Path) -> Bundle:
    """Read and verify the bundle in a file, or the `policy.bundle` in a seed's folder.

    Raises BundleError, which names the file and states what is wrong with it.
    """
    try:
        path = find_bundle(Path(path))
        content = path.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"{path}: no such policy bundle") from None
    except OSError as error:
        raise BundleError(f"{path} is not a complete policy bundle: {error}") from None
    return unpack(content, str(path))


def find_bundle(path: Path) -> Path:
    """Return `path` if it is a file, or the bundle in it. Raises BundleError if there is none."""
    if not path.is_dir() or (path / BUNDLE).is_file():
        return path / BUNDLE if path.is_dir() else path
    seeds = sorted(path.glob(f"seed_*/{BUNDLE}"), key=lambda f: (len(str(f)), f))
    if seeds:
        names = " or ".join(str(file.relative_to(path)) for file in seeds)
        raise BundleError(f"{path} is the folder of a run. Load {names}")
    raise BundleError(f"{path} is a folder without a {BUNDLE}. Pass the path of a bundle")


def unpack(content: bytes, where: str) -> Bundle:
    """Verify and return the bundle in the bytes of a file. where: name of the file in errors."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            contents = {name: archive.read(name) for name in archive.namelist()}
        manifest = json.loads(contents.pop("manifest.json"))
    except DAMAGED as error:
        raise BundleError(
            f"{where} is not a complete policy bundle: {error}. Copy it again, or repeat "
            "the training run"
        ) from None
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if type(version) is not int or version != FORMAT:
        raise BundleError(
            f"{where} has bundle format {version!r}, but this version reads format {FORMAT}. "
            "Create the bundle again with this version"
        )
    if (problem := find_type_error(manifest, MANIFEST)) is not None:
        raise BundleError(f"{where}: manifest.json: {problem}")
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    sums["manifest.json"] = manifest_sha256(manifest)
    for name in sums | dict.fromkeys(MEMBERS) | manifest["sha256"]:
        if sums.get(name) is None or sums[name] != manifest["sha256"].get(name):
            raise BundleError(
                f"{where}: {name} does not match its SHA-256. The file is damaged: copy it again"
            )
    try:
        names = (*MEMBERS, *(name for name in (GUARDIAN,) if name in contents))
        tensors = {name: load_tensors(contents[name]) for name in names}
        for each in tensors.values():
            for name, value in each.items():
                if not np.isfinite(value).all():
                    raise ValueError(f"{name} contains NaN or infinite numbers")
        return assemble(manifest, tensors, contents, where)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BundleError):
            raise  # the base bundle is invalid; the message names it
        raise BundleError(f"{where}: the manifest or a member is invalid: {error}") from None


def assemble(
    manifest: Any,
    tensors: Mapping[str, Mapping[str, np.ndarray]],
    contents: Mapping[str, bytes],
    where: str,
) -> Bundle:
    """Create a bundle from the manifest, the tensors by member, and the bytes of all members."""
    weights, statistics, recorded = (dict(tensors[name]) for name in MEMBERS)
    spec, kinds = Spec.from_json(manifest["spec"]), manifest["normalizers"]
    composition = manifest["composition"]

    def normalizer(name: str, kind: Any) -> Normalizer:
        return Normalizer(statistics[f"{name}/mean"], statistics[f"{name}/scale"], kind)

    graphs = {
        name.removeprefix(GRAPHS).removesuffix(".onnx"): data
        for name, data in contents.items()
        if name.startswith(GRAPHS)
    }
    observations = {c.name: recorded[f"observations/{c.name}"] for c in spec.channels}
    return Bundle(
        spec,
        **manifest["policy"],
        weights=weights,
        normalizers={
            k: normalizer(f"observations/{k}", v) for k, v in kinds["observations"].items()
        },
        provenance=manifest["provenance"],
        actions=normalizer("actions", kinds["actions"]),
        graphs=graphs,
        composition=Composition(**composition) if composition else None,
        base=unpack(contents[BASE], f"{where}: {BASE}") if BASE in contents else None,
        guardian=Guardian.from_tensors(tensors[GUARDIAN]) if GUARDIAN in tensors else None,
        golden=Golden(
            observations,
            recorded.get("noise"),
            recorded["chunks"],
            get(recorded, "memory") or {},
            recorded["composed"] if BASE in contents else None,
        ),
    )


def manifest_sha256(manifest: dict[str, Any]) -> str:
    """Return the SHA-256 of a manifest, without `sha256["manifest.json"]`, with sorted keys."""
    others = {k: v for k, v in manifest["sha256"].items() if k != "manifest.json"}
    text = json.dumps(manifest | {"sha256": others}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def find_type_error(value: Any, form: Any, where: str = "") -> str | None:
    """Return a description of how `value` differs from `form`. None if it matches.

    form: a type, or a dict whose values are forms.
    """
    if not isinstance(form, dict):
        return None if type(value) is form else f"{where} is {value!r}, expected {form.__name__}"
    if not isinstance(value, dict) or value.keys() != form.keys():
        keys = sorted(value) if isinstance(value, dict) else value
        return f"{where or 'it'} has the keys {keys}, expected {sorted(form)}"
    problems = (find_type_error(value[k], f, f"{where}.{k}".lstrip(".")) for k, f in form.items())
    return next((problem for problem in problems if problem is not None), None)
