"""Table of the holdout errors of dynamics models, for each output of a model."""

from __future__ import annotations

from collections.abc import Sequence

from offline_rl.reporting.runs import DynamicsFit, Seed
from offline_rl.utils.text import format_count, format_duration, format_range

HEADER = ["algorithm", "output", "holdout error", "variance", "ratio"]
LESS_NEEDED = ["variance", "algorithm"]  # hidden, in this order, if the terminal is narrow
LEGEND = {
    "output": "a prediction of the model: the change of an observation, or the reward.",
    "holdout error": "squared error of the prediction on the holdout rows, in the units of "
    "training; mean over the elites. With several seeds: mean (minimum–maximum).",
    "variance": "variance of the true values in the holdout rows.",
    "ratio": "holdout error / variance. At 1, the model is no better than a constant.",
}
MAX_OUTPUTS = 12  # outputs of a model that the terminal shows


def rows_of(seeds: Sequence[Seed], *, most: int | None = None) -> list[list[str]]:
    """Return a row for each output of each run's model.

    most: leave out the outputs with the lowest ratios, if a model has more outputs than this.
    """
    body = list[list[str]]()
    for label, fits in fits_of(seeds).items():
        ratios = {name: [fit.ratio(k) for fit in fits] for k, name in enumerate(fits[0].outputs)}
        worst = sorted(ratios, key=lambda name: -max(ratios[name]))[:most]
        for k, name in enumerate(fits[0].outputs):
            if name in worst:
                values = [fit.errors[k] for fit in fits], [fit.variances[k] for fit in fits]
                cells = [mean_and_range(each) for each in (*values, ratios[name])]
                body.append([label, name, *cells])
    return body


def notes_of(seeds: Sequence[Seed]) -> list[str]:
    """Return a sentence on the fit of each run's model."""
    notes = list[str]()
    for label, fits in fits_of(seeds).items():
        counts = [
            f"{name.replace('_', ' ')} {format_range(getattr(fit, name) for fit in fits)}"
            for name in ("epochs", "training_rows", "holdout_rows")
        ]
        elites = " and ".join(dict.fromkeys(str(fit.elites) for fit in fits))
        text = f"{label}: {', '.join(counts)}, elites {elites}"
        seconds = [fit.seconds for fit in fits if fit.seconds is not None]
        text += f", fitted in {format_duration(max(seconds))}" if seconds else ""
        notes.append(f"{text}.")
    return notes


def equations_of(seeds: Sequence[Seed]) -> list[str]:
    """Return the equations of sparse models, each after its run and seed."""
    return [
        f"{seed.label} seed {seed.number}: {equation}"
        for seed in seeds
        if seed.dynamics is not None
        for equation in seed.dynamics.equations
    ]


def hidden_note(seeds: Sequence[Seed]) -> str:
    """Return a note if the terminal does not show all outputs; empty otherwise."""
    count = max((len(fits[0].outputs) for fits in fits_of(seeds).values()), default=0)
    if count <= MAX_OUTPUTS:
        return ""
    hidden = count - MAX_OUTPUTS
    return f"{format_count(hidden, 'output')} with lower ratios: see report.md."


def fits_of(seeds: Sequence[Seed]) -> dict[str, list[DynamicsFit]]:
    """Return label -> the fits of its finished seeds whose models have the same outputs."""
    fits = dict[str, list[DynamicsFit]]()
    for seed in seeds:
        if (fit := seed.dynamics) is not None:
            others = fits.setdefault(seed.label, [])
            if not others or others[0].outputs == fit.outputs:
                others.append(fit)
    return fits


def mean_and_range(values: Sequence[float]) -> str:
    """Format the mean, and the range if there are several values."""
    text, *ends = (f"{x:.3g}" for x in (sum(values) / len(values), min(values), max(values)))
    return text if ends[0] == ends[1] else f"{text} ({'–'.join(ends)})"
