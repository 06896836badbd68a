"""`offline-rl export`: add ONNX graphs of the networks to policy bundles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from offline_rl.evaluation.evaluate import bundles
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically
from offline_rl.utils.modules import import_extra
from offline_rl.utils.options import Checked, NonNegative, build, options_signature
from policies import BundleError, bundle
from policies.golden import seal, verify_golden, with_arguments

NEEDED = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Checked):
    """Options of `offline-rl export`."""

    run: str  # a policy bundle, the folder of a seed, or the folder of a run
    format: Literal["onnx"] = "onnx"  # graph to add; policies.load(…, runtime="onnx") runs it
    target_cost: NonNegative | None = None  # cost limit to store in the bundle; default: unchanged


def export(**keys: Any) -> list[str]:
    """Add ONNX graphs to every bundle of a run. Return one line per bundle.

    keys: options of the command. If a bundle cannot be exported, raises UserError and changes none.
    """
    options = build(ExportOptions, keys)
    for module in NEEDED:
        import_extra(module, "export", "export")
    paths = bundles(Path(options.run))
    from policies.export import export_bundle

    results = dict[Path, tuple[bundle.Bundle, float]]()
    for path in paths:
        try:
            results[path] = export_bundle(with_limit(bundle.read(path), options.target_cost))
        except BundleError as error:
            where = "" if str(path) in str(error) else f"{path}: "
            raise UserError(f"{where}{error}") from None
    lines = []
    for path, (with_graphs, difference) in results.items():
        write_atomically(path, partial(bundle.write, bundle=with_graphs))
        size = sum(map(len, with_graphs.graphs.values()))
        lines.append(f"{path}: ONNX of {size / 1e3:,.0f} kB, within {difference:.1e} of torch")
    return lines


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
