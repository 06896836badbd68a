"""`offline-rl export`: the networks of policy bundles as ONNX, inside the same files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from offline_rl.evaluation.evaluate import bundles
from offline_rl.utils.errors import UserError
from offline_rl.utils.files import write_atomically
from offline_rl.utils.modules import needed
from offline_rl.utils.options import Checked, build, signature
from policies import BundleError, bundle

NEEDED = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Checked):
    """What `offline-rl export` takes."""

    run: str  # a bundle, a seed's folder or its parent
    format: Literal["onnx"] = "onnx"  # run by policies.load(path, runtime="onnx"), without torch


def export(**keys: Any) -> list[str]:
    """Add the ONNX graph to every bundle of a run. Return a line on each.

    keys: those of the command. Raises UserError and changes nothing if a bundle has no graph.
    """
    options = build(ExportOptions, keys)
    for module in NEEDED:
        needed(module, "export", "export")
    paths = bundles(Path(options.run))
    from policies.export import exported

    made = dict[Path, tuple[bundle.Bundle, float]]()
    for path in paths:
        try:
            made[path] = exported(bundle.read(path))
        except BundleError as error:
            where = "" if str(path) in str(error) else f"{path}: "
            raise UserError(f"{where}{error}") from None
    lines = []
    for path, (found, apart) in made.items():
        write_atomically(path, partial(bundle.write, bundle=found))
        size = sum(map(len, found.graphs.values()))
        lines.append(f"{path}: ONNX of {size / 1e3:,.0f} kB, within {apart:.1e} of torch")
    return lines


export.__signature__ = signature(export, ExportOptions)  # type: ignore[attr-defined]
