"""The errors of estimated individual epsilons, and of their noisy releases, in one run on MNIST.

    EQUIDP_DATA=... python -m papers.reproduction.estimates [--epochs 10] [--method dpsgd] \\
        [--clipping-bound C] [--out estimates.json]

Norms of `held` examples in every step (exact), and of all examples three times an epoch. Then, as in Yu et
al., Table 2, 20 releases of the mean and of quantiles at (0.1, 1e-5).
Prints raw values: for public data.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from equidp import Individual, IndividualReport, default_plan
from equidp.comparison.cells import split
from equidp.data import open_source
from equidp.evaluation.predictions import predict
from equidp.individual.epsilons import individual_epsilons
from equidp.training.build import build
from papers.reproduction.accounted import HeldExamples, loss_correlation

_QUANTILES = [0.1, 0.3, 0.5, 0.7, 0.9]


def released(report: IndividualReport, times: int = 20) -> dict[str, dict[str, float]]:
    """Median error over releases of each figure, relative to the true one."""
    truths = {"mean": float(report.sensitive_epsilons.mean())}
    truths |= {f"{q:g}": float(np.quantile(report.sensitive_epsilons, q)) for q in _QUANTILES}
    values: dict[str, list[float]] = {name: [] for name in truths}
    for _ in range(times):
        values["mean"].append(report.release_mean(0.1, 1e-5))
        for q, value in zip(_QUANTILES, report.release_quantiles(_QUANTILES, 0.1, 1e-5), strict=True):
            values[f"{q:g}"].append(value)
    return {name: {"true": truth, **_errors(np.array(values[name]), truth)} for name, truth in truths.items()}


def _errors(values: npt.NDArray[np.float64], truth: float) -> dict[str, float]:
    errors = np.abs(values / truth - 1)
    return {"median_error": float(np.median(errors)), "mean_error": float(errors.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=float, default=10)
    parser.add_argument("--method", default="dpsgd")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--held", type=int, default=1000)
    parser.add_argument("--clipping-bound", type=float, help="default: the data's plan's")
    parser.add_argument("--out", type=Path, default=Path("estimates.json"))
    chosen = parser.parse_args()
    data = split(open_source(chosen.data), 0)
    plan = default_plan(chosen.data).with_changes({"epochs": chosen.epochs})
    if chosen.clipping_bound:
        plan = plan.with_changes({"clipping_bound": chosen.clipping_bound})
    held = HeldExamples(data.train, chosen.held)
    resolved = plan.for_method(chosen.method).resolve(len(data.train))
    trainer = build(
        resolved, data.train, weights_seed=0, seed=0, callbacks=[held], individual=Individual(per_epoch=3)
    )
    trainer.fit()
    exact = individual_epsilons(held.exact, held.grid, trainer.event, trainer.delta)
    start = time.perf_counter()
    report = trainer.individual_report()
    seconds = time.perf_counter() - start
    estimated = report.sensitive_epsilons[held.indices.numpy()]
    losses = trainer.loss(predict(trainer.model, data.train.inputs), data.train.targets)
    figures = {
        "steps": trainer.steps,
        "run epsilon": report.largest,
        "correlation with exact": float(np.corrcoef(exact, estimated)[0, 1]),
        "mean epsilon": {"exact": float(exact.mean()), "3 an epoch": float(estimated.mean())},
        "correlation of epsilon with log loss": loss_correlation(report.sensitive_epsilons, losses),
        "seconds for tight epsilons of all": seconds,
        "mean renyi over mean tight": float(
            trainer.individual_report(accountant="rdp").sensitive_epsilons.mean()
            / report.sensitive_epsilons.mean()
        ),
        "releases": released(report),
    }
    text = json.dumps(figures, indent=1)
    chosen.out.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
