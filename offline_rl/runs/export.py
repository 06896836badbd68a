"""`offline-rl export`: add ONNX graphs of the networks and a guardian to policy bundles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from offline_rl.algorithms.common.safety.guardian import Quantile, fit_guardian
from offline_rl.data import Dataset
from offline_rl.data.load import load_dataset
from offline_rl.evaluation.evaluate import bundles
from offline_rl.runs.card import write_hub_folder
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically
from offline_rl.utils.modules import import_extra
from offline_rl.utils.options import Checked, Count, NonNegative, build, options_signature
from policies import BundleError, bundle
from policies.golden import seal, verify_golden, with_arguments

NEEDED = ("onnx", "onnxscript", "onnxruntime")
READ = ("guardian_rows", "guardian_quantile")  # read with a guardian


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Checked):
    """Options of `offline-rl export`."""

    run: str  # a policy bundle, the folder of a seed, or the folder of a run
    format: Literal["onnx", "none", "hub"] = (
        "onnx"  # graph to add, for policies.load(…, runtime="onnx"); hub: a folder for a model hub
    )
    out: str | None = None  # hub: the folder; default: `hub` in the folder of the bundle
    license: str | None = None  # hub: license of the policy, such as apache-2.0
    guardian: Literal["none", "kde", "neighbor"] = (
        "none"  # score to add that says whether a state and an action are like the data's
    )
    dataset: str | None = None  # guardian: card or file of the data; null: the policy's
    guardian_rows: Count = 2_000  # guardian: random rows of the data that it compares with
    guardian_quantile: Quantile = 0.05  # guardian: share of the data's rows outside
    target_cost: NonNegative | None = None  # cost limit to store in the bundle; default: unchanged


def export(**keys: Any) -> list[str]:
    """Add ONNX graphs, a guardian, or both to every bundle of a run. Return one line per bundle.

    format=hub writes a folder for a model hub instead and returns its path.

    keys: options of the command. If a bundle cannot be exported, raises UserError and changes none.
    """
    options = build(ExportOptions, keys)
    if options.guardian == "none":
        given = [name for name in ("dataset", *READ) if name in keys]
        if options.format == "none" and options.target_cost is None:
            given.append("format")
        if given:
            name = f"{given[0]}={keys[given[0]]}"
            raise UserError(f"{name} needs a guardian. Set guardian=kde or guardian=neighbor.")
    if options.format == "hub":
        return [to_hub(options)]
    for name in ("out", "license"):
        if name in keys:
            raise UserError(f"{name}={keys[name]} needs format=hub. Remove {name}=.")
    for module in NEEDED if options.format == "onnx" else ():
        import_extra(module, "export", "export")
    results = dict[Path, tuple[bundle.Bundle, str]]()
    for path in bundles(Path(options.run)):
        try:
            results[path] = with_additions(bundle.read(path), options)
        except BundleError as error:
            where = "" if str(path) in str(error) else f"{path}: "
            raise UserError(f"{where}{error}") from None
    for path, (changed, _) in results.items():
        write_atomically(path, partial(bundle.write, bundle=changed))
    return [f"{path}: {text}" for path, (_, text) in results.items()]


def to_hub(options: ExportOptions) -> str:
    """Write the folder for a model hub and return its path. Raises UserError."""
    paths = bundles(Path(options.run))
    if len(paths) > 1:
        raise UserError(
            f"run={options.run} has {len(paths)} bundles. Give the folder of one seed, such as "
            f"run={paths[0].parent}."
        )
    out = Path(options.out or paths[0].with_name("hub"))
    try:
        write_hub_folder(paths[0], out, options.license)
    except BundleError as error:
        raise UserError(str(error)) from None
    return str(out)


def with_additions(policy: bundle.Bundle, options: ExportOptions) -> tuple[bundle.Bundle, str]:
    """Return the bundle with what the options ask for, and a description of it.

    Raises UserError and BundleError.
    """
    parts = []
    if options.target_cost is not None:
        policy = with_limit(policy, options.target_cost)
        parts.append(f"target_cost={options.target_cost:g}")
    if options.format == "onnx":
        from policies.export import export_bundle

        policy, difference = export_bundle(policy)
        size = sum(map(len, policy.graphs.values()))
        parts.append(f"ONNX of {size / 1e3:,.0f} kB, within {difference:.1e} of torch")
    if options.guardian != "none":
        data, spec = guardian_data(policy, options.dataset), policy.spec
        rows, quantile = options.guardian_rows, options.guardian_quantile
        guardian = fit_guardian(data, options.guardian, rows, quantile)
        sizes = len(guardian.center), data.actions.shape[1]
        if spec.single_vector is None or sizes != (spec.observation_dim, spec.action_dim):
            raise UserError(
                f"{data.path or data.name} has {sizes[0]} observed numbers and {sizes[1]} actions, "
                f"which are not those of the policy. Use the data of its task."
            )
        policy = replace(policy, guardian=guardian)
        parts.append(f"guardian {options.guardian} of {len(guardian.points):,} rows")
    return policy, "; ".join(parts)


def guardian_data(policy: bundle.Bundle, source: str | None) -> Dataset:
    """Return the data set that the guardian is fitted to. source: None for the policy's data.

    Raises UserError.
    """
    known = policy.provenance.get("dataset") or policy.provenance.get("task")
    if source is None and known in (None, "none"):
        raise UserError("The bundle does not name its data. Give it with dataset=<card or file>.")
    return load_dataset(source or str(known))


def with_limit(policy: bundle.Bundle, target_cost: float | None) -> bundle.Bundle:
    """Return `policy` with another target cost and a new golden output. Raises BundleError.

    target_cost: None returns `policy` unchanged.
    """
    if target_cost is None:
        return policy
    changed = with_arguments(policy, {"target_cost": target_cost})
    verify_golden(policy, "torch")  # a new golden output would hide damaged weights
    return seal(replace(changed, golden=None, graphs={}))


export.__signature__ = options_signature(export, ExportOptions)  # type: ignore[attr-defined]
