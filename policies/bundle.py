"""The policy bundle: the one file that leaves training. Nothing in it is ever executed.

A ZIP archive (stored, not compressed), format 2:

    manifest.json            {format, spec, policy: {kind, arguments}, normalizers, provenance,
                             sha256}
    weights.safetensors      the policy's parameters, float32
    normalizers.safetensors  mean and scale: observations/<channel>/… of each vector, raw -> what
                             the network sees; actions/…, [-1, 1] -> what the network answers
    golden.safetensors       what it answers to something: observations/<channel> [B, n_obs_steps, …],
                             noise where it draws any, chunk [B, chunk_size, A]
    graphs/<name>.onnx       its network for other runtimes, where it was exported
    base.bundle              the policy to whose actions it adds, where it is a residual

`normalizers` says of which kind they are, {observations: {channel: kind}, actions: kind}. `sha256`
has an entry for each member, the manifest's own being of what it holds besides. A sampler's tables
are among the policy's arguments.

Format 1, which is still read, had one vector, `normalizer.safetensors` with its mean and scale, and
neither golden answer nor graphs; at first its manifest had no entry of its own.
Reading needs numpy and safetensors only; torch is loaded when a torch policy is asked for.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from policies.normalizer import Normalizer
from policies.spec import VECTOR, Spec

FORMAT = 2
DAMAGED = (zipfile.BadZipFile, zlib.error, KeyError, ValueError, OSError, EOFError, RuntimeError)
MEMBERS = {
    1: ("weights.safetensors", "normalizer.safetensors"),
    2: ("weights.safetensors", "normalizers.safetensors", "golden.safetensors"),
}
GRAPHS, BASE = "graphs/", "base.bundle"
BUNDLE = "policy.bundle"  # the bundle in the folder of a training seed
MANIFEST: dict[str, Any] = {
    "format": int,
    "spec": dict,
    "policy": {"kind": str, "arguments": dict},
    "provenance": dict,
    "sha256": dict,
}
KINDS = {"normalizers": {"observations": dict, "actions": str}}  # of format 2, besides


class BundleError(ValueError):
    """A bundle that is damaged, of another format, or of other sizes than it says."""


@dataclass(frozen=True)
class Golden:
    """An answer by which whoever runs the policy is known to run it rightly."""

    observations: dict[str, np.ndarray]  # of each channel [B, n_obs_steps, *shape], raw
    noise: np.ndarray | None  # [B, *noise_shape]; None: it draws none
    chunk: np.ndarray  # [B, chunk_size, A] in [-1, 1]


@dataclass(frozen=True)
class Bundle:
    """What a bundle holds, verified."""

    spec: Spec
    kind: str  # the class in policies.heads
    arguments: dict[str, Any]  # and what it is built with
    weights: dict[str, np.ndarray]
    normalizers: Mapping[str, Normalizer]  # of the vectors by name; of a lone one it may be given
    provenance: dict[str, Any] = field(default_factory=dict)  # run, data, versions, scores
    actions: Normalizer | None = None  # [-1, 1] -> what the network answers; None: the same
    graphs: Mapping[str, bytes] = field(default_factory=dict)  # ONNX, by name
    base: Bundle | None = None
    golden: Golden | None = None  # `write` makes it where it is missing

    def __post_init__(self) -> None:
        vectors = {channel.name: channel.shape for channel in self.spec.vectors}
        if isinstance(self.normalizers, Normalizer):
            object.__setattr__(self, "normalizers", dict.fromkeys(vectors, self.normalizers))
        if self.actions is None:
            object.__setattr__(self, "actions", Normalizer.identity((self.spec.action_dim,)))
        found = {name: normalizer.mean.shape for name, normalizer in self.normalizers.items()}
        if found != vectors:
            raise ValueError(f"the normalizers are for {found}, the observations are {vectors}")
        assert self.actions is not None
        shape = self.actions.mean.shape
        if shape != (self.spec.action_dim,) or self.actions.kind == "z-score":
            raise ValueError(
                f"actions are normalized by their range or not at all, {self.spec.action_dim} of "
                f"them; found {self.actions.kind} of {list(shape)}"
            )


def write(path: str | Path, bundle: Bundle) -> None:
    """Writes `bundle` to `path`; the same bundle gives the same bytes. Not atomic.

    Raises BundleError where its parts do not fit one another, so that it could not be loaded.
    """
    Path(path).write_bytes(packed(bundle))


def packed(bundle: Bundle) -> bytes:
    """`bundle` as a file."""
    golden = bundle.golden
    if golden is None:
        from policies.golden import answer  # runs the policy

        golden = answer(bundle)
    assert bundle.actions is not None
    normalizers = {f"observations/{name}": each for name, each in bundle.normalizers.items()}
    normalizers["actions"] = bundle.actions
    asked = {f"observations/{name}": value for name, value in golden.observations.items()}
    asked |= {} if golden.noise is None else {"noise": golden.noise}
    contents = {
        "weights.safetensors": save_tensors(bundle.weights),
        "normalizers.safetensors": save_tensors(
            {f"{name}/mean": each.mean for name, each in normalizers.items()}
            | {f"{name}/scale": each.scale for name, each in normalizers.items()}
        ),
        "golden.safetensors": save_tensors({**asked, "chunk": golden.chunk}),
        **{f"{GRAPHS}{name}.onnx": graph for name, graph in bundle.graphs.items()},
        **({} if bundle.base is None else {BASE: packed(bundle.base)}),
    }
    manifest = {
        "format": FORMAT,
        "spec": bundle.spec.to_json(),
        "policy": {"kind": bundle.kind, "arguments": bundle.arguments},
        "normalizers": {
            "observations": {name: each.kind for name, each in bundle.normalizers.items()},
            "actions": bundle.actions.kind,
        },
        "provenance": bundle.provenance,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()},
    }
    manifest = json.loads(json.dumps(manifest, allow_nan=False))  # as it will be read
    manifest["sha256"]["manifest.json"] = own_sha256(manifest)
    text, file = json.dumps(manifest, indent=2).encode(), io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {"manifest.json": text, **contents}.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return file.getvalue()


def read(path: str | Path) -> Bundle:
    """Read and verify the bundle in a file, or the `policy.bundle` in a seed's folder.

    Raises BundleError naming the file and what is wrong with it.
    """
    try:
        path = file_of(Path(path))
        content = path.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"{path}: no such policy bundle") from None
    except OSError as error:
        raise BundleError(f"{path} is not a whole policy bundle: {error}") from None
    return unpacked(content, str(path))


def file_of(path: Path) -> Path:
    """Return `path`, or the bundle in that folder. Raises BundleError for a folder without one."""
    if not path.is_dir() or (path / BUNDLE).is_file():
        return path / BUNDLE if path.is_dir() else path
    seeds = sorted(path.glob(f"seed_*/{BUNDLE}"), key=lambda f: (len(str(f)), f))
    if seeds:
        names = " or ".join(str(file.relative_to(path)) for file in seeds)
        raise BundleError(f"{path} is a run's folder. Load {names}")
    raise BundleError(f"{path} is a folder without a {BUNDLE}. Give the file of a policy bundle")


def unpacked(content: bytes, where: str) -> Bundle:
    """The bundle in a file of which errors speak as `where`."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            contents = {name: archive.read(name) for name in archive.namelist()}
        manifest = json.loads(contents.pop("manifest.json"))
    except DAMAGED as error:
        raise BundleError(
            f"{where} is not a whole policy bundle: {error}; copy it again, or export its run again"
        ) from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if type(found) is not int or found not in MEMBERS:
        raise BundleError(
            f"{where}: bundle format {found!r}, this version reads formats 1 to {FORMAT}"
        )
    if (wrong := misfit(manifest, MANIFEST | (KINDS if found > 1 else {}))) is not None:
        raise BundleError(f"{where}: manifest.json: {wrong}")
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
    if found > 1 or "manifest.json" in manifest["sha256"]:
        sums["manifest.json"] = own_sha256(manifest)
    for name in sums | dict.fromkeys(MEMBERS[found]) | manifest["sha256"]:
        if sums.get(name) is None or sums[name] != manifest["sha256"].get(name):
            raise BundleError(f"{where}: {name} does not match its SHA-256; the file is damaged")
    try:
        tensors = {name: load_tensors(contents[name]) for name in MEMBERS[found]}
        for each in tensors.values():
            for name, value in each.items():
                if not np.isfinite(value).all():
                    raise ValueError(f"{name} holds NaN or infinite numbers")
        return (before if found == 1 else now)(manifest, tensors, contents, where)
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BundleError):
            raise  # of the bundle inside
        raise BundleError(f"{where}: the manifest or a member is incomplete: {error}") from None


Tensors = Mapping[str, Mapping[str, np.ndarray]]


def now(manifest: Any, tensors: Tensors, contents: Mapping[str, bytes], where: str) -> Bundle:
    """Of format 2."""
    weights, statistics, answer = (dict(tensors[name]) for name in MEMBERS[2])
    spec, kinds = Spec.from_json(manifest["spec"]), manifest["normalizers"]

    def normalizer(name: str, kind: Any) -> Normalizer:
        return Normalizer(statistics[f"{name}/mean"], statistics[f"{name}/scale"], kind)

    graphs = {
        name.removeprefix(GRAPHS).removesuffix(".onnx"): data
        for name, data in contents.items()
        if name.startswith(GRAPHS)
    }
    asked = {channel.name: answer[f"observations/{channel.name}"] for channel in spec.channels}
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
        base=unpacked(contents[BASE], f"{where}: {BASE}") if BASE in contents else None,
        golden=Golden(asked, answer.get("noise"), answer["chunk"]),
    )


def before(manifest: Any, tensors: Tensors, contents: Mapping[str, bytes], where: str) -> Bundle:
    """Of format 1, whose names of numbers stand beside a shape, and which has no golden answer."""
    weights, statistics = (dict(tensors[name]) for name in MEMBERS[1])
    given = dict(manifest["spec"])
    vector = {"name": VECTOR, "shape": given.pop("observation_shape")}
    vector["names"] = given.pop("observation_names")
    spec = Spec.from_json({**given, "channels": [vector]})
    same, told = Normalizer(statistics["mean"], statistics["scale"]), manifest["provenance"]
    return Bundle(
        spec, **manifest["policy"], weights=weights, normalizers={VECTOR: same}, provenance=told
    )


def own_sha256(manifest: dict[str, Any]) -> str:
    """Of the manifest without its own entry, whatever its spaces and order."""
    others = {k: v for k, v in manifest["sha256"].items() if k != "manifest.json"}
    text = json.dumps(manifest | {"sha256": others}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def misfit(value: Any, form: Any, where: str = "") -> str | None:
    """How `value` differs from `form`, a type or a dict of forms; None where it does not."""
    if not isinstance(form, dict):
        return (
            None if type(value) is form else f"{where} is {value!r}, a {form.__name__} is expected"
        )
    if not isinstance(value, dict) or value.keys() != form.keys():
        found = sorted(value) if isinstance(value, dict) else value
        return f"{where or 'it'} has {found}, {sorted(form)} is expected"
    parts = (misfit(value[k], f, f"{where}.{k}".lstrip(".")) for k, f in form.items())
    return next((wrong for wrong in parts if wrong is not None), None)
