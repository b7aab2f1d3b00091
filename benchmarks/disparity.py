"""Where the disparity between classes 2 and 8 comes from on MNIST, as in Esipova et al., figure 12.

    EQUIDP_DATA=... python benchmarks/disparity.py [--epochs 12] [--methods dpsgd,global-adapt] \\
        [--out disparity.json]

Reads raw data without noise: for research on public data. Group gradients are of 1,000 examples of each
class, and Hessian products of 64, drawn again for each.
"""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path

import joblib
import pandas as pd
import torch
from matplotlib.figure import Figure

from equidp import Diagnostics, Effort, Plan, default_plan
from equidp.comparison.cells import split
from equidp.data import open_source
from equidp.training.build import build

DATA = "mnist-esipova"
EVERY = 426  # steps; two epochs
EFFORT = Effort(gradient_examples=1000, trace_vectors=40, eigenvalue_products=12)
SHOWN = ("direction", "magnitude", "direction_alternative", "magnitude_alternative", "noise")


def diagnosed(method: str, plan: Plan) -> list[dict[str, float | str]]:
    """One row per diagnosed step and class."""
    torch.set_num_threads(1)
    data = split(open_source(DATA), 0)
    diagnostics = Diagnostics(EVERY, ("2", "8"), effort=EFFORT)
    resolved = plan.resolve(method, len(data.train))
    run = build(resolved, data.train, seed=0, secure=False, callbacks=[diagnostics]).fit()
    accuracy = run.metrics(data.test).set_index("group")["accuracy"]
    print(f"{method}: accuracy {accuracy['2']:.4f} of class 2, {accuracy['8']:.4f} of class 8", flush=True)
    rows = diagnostics.diagnosis.sensitive_groups.to_dict("records")
    return [{"method": method, **row} for row in rows]


def draw(rows: list[dict[str, float | str]], path: Path) -> None:
    """Draw direction and magnitude by class in both splits, with two standard errors, a column a method."""
    table = pd.DataFrame(rows)
    methods = list(dict.fromkeys(table["method"]))
    figure = Figure(figsize=(4.6 * len(methods), 6.4))
    panels = figure.subplots(2, len(methods), sharex=True, squeeze=False)
    for column, method in enumerate(methods):
        for line, ending in enumerate(("", "_alternative")):
            axes = panels[line, column]
            for error, style in (("direction", "-"), ("magnitude", ":")):
                for group, colour in (("8", "#D55E00"), ("2", "#0072B2")):
                    part = table[(table["method"] == method) & (table["group"] == group)]
                    mean, spread = (part[f"sensitive_{error}{ending}{end}"] for end in ("", "_se"))
                    axes.plot(part["epoch"], mean, style, color=colour, label=f"{error}, class {group}")
                    axes.fill_between(
                        part["epoch"], mean - 2 * spread, mean + 2 * spread, color=colour, alpha=0.12
                    )
            axes.axhline(0, color="black", linewidth=0.6)
            axes.set_title(f"{method}: {'other split' if ending else 'length after clipping'}", loc="left")
        panels[1, column].set_xlabel("epoch")
    for axes in panels[:, 0]:
        axes.set_ylabel("excess risk: loss a step")
    panels[0, 0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=float, default=12)
    parser.add_argument("--methods", default="dpsgd,global-adapt")
    parser.add_argument("--out", type=Path, default=Path("disparity.json"))
    parser.add_argument("--plot", type=Path, help="curves, as PNG")
    chosen = parser.parse_args()
    # A step more, since the last step's model is not diagnosed.
    plan = replace(default_plan(DATA), epochs=chosen.epochs + 0.01)
    os.environ["OMP_NUM_THREADS"] = "1"
    runs = joblib.Parallel(n_jobs=-1)(
        joblib.delayed(diagnosed)(method, plan) for method in chosen.methods.split(",")
    )
    rows = [row for run in runs for row in run]
    chosen.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    if chosen.plot is not None:
        draw(rows, chosen.plot)
    print("method         epoch class " + "".join(f"{name:>24s}" for name in SHOWN))
    for row in rows:
        cells = (f"{row[f'sensitive_{name}']:.5f} ± {row[f'sensitive_{name}_se']:.5f}" for name in SHOWN)
        print(
            f"{row['method']:14s} {row['epoch']:5.1f} {row['group']:5s} "
            + "".join(f"{cell:>24s}" for cell in cells)
        )


if __name__ == "__main__":
    main()
