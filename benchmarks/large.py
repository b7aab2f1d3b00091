"""Time and memory from a large file to a trained model, its card and predictions.

    python benchmarks/large.py --rows 10000000 --columns 40
    python benchmarks/large.py --rows 1500000 --csv

Makes a table (numbers, texts, two columns of groups, a skewed target), trains logistic regression privately,
and predicts for all rows, each in a process of its own. Prints, for each stage, seconds by the clock and of
CPU time, and the most memory that was resident so far. Home, cache and temporary folders are empty before:
the last line says which files are new in them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np

_BLOCK = 500_000


def make(path: Path, rows: int, columns: int) -> None:
    import pyarrow as pa
    from pyarrow import csv, parquet

    draw = np.random.default_rng(0)
    writer = None
    for start in range(0, rows, _BLOCK):
        n = min(_BLOCK, rows - start)
        lab = draw.normal(size=(n, max(4, columns - 11)))
        table = {
            "age": draw.integers(18, 95, n),
            "income": np.round(draw.lognormal(10, 1, n), 2),
            **{f"lab {at}": np.round(10 + 3 * lab[:, at], 4) for at in range(lab.shape[1])},
            "visits": draw.poisson(3, n),
            "bmi": np.round(draw.normal(26, 4, n), 1),
            "hours": draw.integers(0, 80, n),
            "job": _texts(draw, n, [f"job {at}" for at in range(12)]),
            "ward": _texts(draw, n, [f"ward {at}" for at in range(8)]),
            "status": _texts(draw, n, ["single", "married", "divorced", "widowed"]),
            "school": _texts(draw, n, [f"level {at}" for at in range(8)]),
            "sex": _texts(draw, n, ["F", "M"]),
            "region": _texts(draw, n, ["north", "south", "east"], [0.7, 0.25, 0.05]),
        }
        logit = (table["bmi"] - 26) / 4 + (table["age"] - 60) / 15 + lab[:, 0] - 3.5
        table["ill"] = np.where(draw.random(n) < 1 / (1 + np.exp(-logit)), "yes", "no")
        part = pa.table(table)
        if writer is None:
            options = csv.WriteOptions(quoting_style="none")
            is_csv = path.suffix == ".csv"
            writer = (
                csv.CSVWriter(path, part.schema, write_options=options)
                if is_csv
                else parquet.ParquetWriter(path, part.schema)
            )
        writer.write_table(part)
    assert writer is not None
    writer.close()


def _texts(
    draw: np.random.Generator, n: int, values: list[str], shares: list[float] | None = None
) -> np.ndarray:
    return np.array(values, dtype=object)[draw.choice(len(values), n, p=shares)]


class Stages:
    """Prints a line for each stage of this process."""

    def __init__(self) -> None:
        # The time of the process before this line: Python and its libraries.
        self._clock, self._cpu = time.perf_counter(), 0.0

    def ends(self, name: str) -> None:
        clock, cpu = time.perf_counter(), time.process_time()
        print(
            f"{name:<34}{clock - self._clock:>8.1f}{cpu - self._cpu:>8.1f}{_resident():>9.2f}",
            flush=True,
        )
        self._clock, self._cpu = clock, cpu


def _resident() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def train(path: Path, folder: Path, batch_size: int, epochs: int) -> None:
    stages = Stages()

    import equidp
    from equidp.data import Recipe
    from equidp.runs.begin import begin, prepare
    from equidp.runs.config import RunData, TrainConfig
    from equidp.runs.train import train as train_run
    from equidp.training.plan import Plan

    class Epochs(equidp.Callback):
        def after_epoch(self, trainer: equidp.Trainer) -> None:
            stages.ends(f"epoch {round(trainer.epoch)}, test included")

    stages.ends("import")
    recipe = Recipe(target="ill", group=("sex", "region"))
    plan = Plan(model="logistic", batch_size=batch_size, epochs=epochs, learning_rate=1.0)
    prepared = prepare(
        TrainConfig(RunData(str(path), recipe), plan.with_changes(method="dpsgd-f", epsilon=1.0))
    )
    stages.ends("preparation")
    train_run_folder = begin(prepared, folder)
    stages.ends("folder of the run")
    _, evaluation = train_run(folder, prepared=train_run_folder, callbacks=[Epochs()])
    stages.ends("figures and card")
    everyone = evaluation.groups.iloc[-1]
    print(f"accuracy {everyone['accuracy']:.4f} on {everyone['count']:,} test examples", flush=True)


def predict(path: Path, folder: Path, out: Path) -> None:
    from equidp.cli.app import main as command

    stages = Stages()
    sys.argv = ["equidp", "predict", str(folder), str(path), "--out", str(out)]
    with suppress(SystemExit):
        command()
    stages.ends("predictions for all rows")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--columns", type=int, default=16)
    parser.add_argument("--csv", action="store_true", help="a CSV file; default: Parquet")
    parser.add_argument("--batch-size", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where to work; default: a temporary folder")
    parser.add_argument("--stage", choices=["train", "predict"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.stage is None:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            measure(Path(folder), given)
        return
    path, run = given.folder / name_of(given), given.folder / "run"
    if given.stage == "train":
        train(path, run, given.batch_size, given.epochs)
    else:
        predict(path, run, given.folder / "predictions.csv")


def name_of(given: argparse.Namespace) -> str:
    return "people.csv" if given.csv else "people.parquet"


def measure(folder: Path, given: argparse.Namespace) -> None:
    path, apart = folder / name_of(given), folder / "apart"
    make(path, given.rows, given.columns)
    apart.mkdir()
    print(f"{given.rows:,} rows, {path.stat().st_size / 1e9:.2f} GB; {os.cpu_count()} cores")
    print(f"{'stage':<34}{'clock s':>8}{'cpu s':>8}{'max GiB':>9}", flush=True)
    places = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "EQUIDP_CACHE", "TMPDIR"), str(apart))
    began, environment = time.perf_counter(), {**os.environ, **places}
    for stage in ("train", "predict"):
        options = ["--batch-size", str(given.batch_size), "--epochs", str(given.epochs)]
        child = [sys.executable, __file__, "--stage", stage, "--folder", str(folder), *options]
        subprocess.run([*child, *["--csv"] * given.csv], check=True, env=environment)
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{time.perf_counter() - began:.1f} s in all, {usage.ru_utime + usage.ru_stime:.1f} s of "
        f"CPU time; at most {usage.ru_maxrss / 2**20:.2f} GiB"
    )
    new = sorted(str(each.relative_to(apart)) for each in apart.rglob("*") if each.is_file())
    print(f"files outside of the run's folder: {', '.join(new) or 'none'}")


if __name__ == "__main__":
    main()
