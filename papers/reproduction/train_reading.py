"""Trains a row of Xu et al.'s with one choice of their setup read otherwise; keeps runs as they come.

EQUIDP_DATA=... python -m papers.reproduction.train_reading --method dpsgd --reading momentum-.5 --epochs 10
python -m papers.reproduction.train_reading --table
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import torch

from equidp.cli.memory import keep_freed_memory
from equidp.store import Store
from papers.reproduction.reading_runs import ReadingFigures, ReadingRun, Row, load_or_train
from papers.reproduction.readings import READINGS
from papers.reproduction.result import commit


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="dpsgd", help="names, separated by commas")
    parser.add_argument(
        "--reading", default="base", help=f"names, separated by commas: {', '.join(READINGS)}"
    )
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--into", type=Path, default=Path("equidp-runs/readings"), help="folder of kept runs")
    parser.add_argument("--commit", help="of a run that was stopped; default: this checkout's")
    parser.add_argument("--table", action="store_true", help="train nothing: print the last epochs kept")
    chosen = parser.parse_args()
    if chosen.table:
        kept = [entry for entry in Store(chosen.into).entries() if "reading" in entry.facts]
        for entry in sorted(kept, key=lambda entry: entry.what):
            rows = ReadingFigures.read(entry).rows
            last = max(row["at"] for row in rows)
            print(_line(entry.facts["run"], [row for row in rows if row["at"] == last]))
        return
    keep_freed_memory()
    torch.set_num_threads(1)
    made_by = chosen.commit or commit()
    for method in chosen.method.split(","):
        for reading in chosen.reading.split(","):
            run = ReadingRun(method, reading, chosen.epochs, chosen.seed, chosen.data, made_by)
            load_or_train(run, chosen.into, partial(_print_epoch, run))


def _print_epoch(run: ReadingRun, epoch: int, rows: list[Row]) -> None:
    print(_line(vars(run), rows), flush=True)


def _line(run: dict[str, object], rows: list[Row]) -> str:
    figures = {(row["group"], row["quantity"]): row["value"] for row in rows}
    groups = (
        ("all", "2", "8") if run["data"] == "mnist" else tuple(dict.fromkeys(row["group"] for row in rows))
    )
    parts = [
        f"{quantity} " + " ".join(f"{figures[group, quantity]:.4f}" for group in groups)
        for quantity in ("accuracy", "loss", "norm")
    ]
    name = f"{run['data']} {run['method']} {run['reading']} seed {run['seed']}"
    return f"{name} epoch {rows[0]['at']}: {' | '.join(parts)} ({', '.join(groups)})"


if __name__ == "__main__":
    main()
