"""Do runs give the same figures: with either engine, before and after a change, or as those that are kept?

    EQUIDP_DATA=... python benchmarks/same_figures.py [--data digits,adult,dutch] [--seeds 2] [--epochs 2] \\
        [--out same.json]
    EQUIDP_DATA=... python benchmarks/same_figures.py --before CHECKOUT [--after CHECKOUT] \\
        [--data digits,adult,dutch,csv,cut] [--epochs 1] [--methods sgd,dpsgd]
    python benchmarks/same_figures.py --kept
    python benchmarks/same_figures.py --keep

The first prints by how much the engines differ; see two_engines.py. The second runs `equidp compare` from
two checkouts, with the same seed and noise multiplier, and compares accuracy and loss of every method and
group as they stand in the JSON, to ten decimals. It ends with exit code 1 where any figure differs or is
missing. "csv" is a small table of numbers and texts, written for the purpose, and "cut" the same table with
columns cut into intervals.

The third compares these two and digits, all methods, with `figures.json` beside this file: losses to 1 part
in 10,000 and accuracies to two examples of each group, which other CPUs keep. It ends with exit code 1
where figures moved, or where `equidp.store.FIGURES` is not the number that the file was made with. The fourth
rewrites that file: raise FIGURES and run it in the commit that changes figures on purpose.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parents[1]
KEPT = Path(__file__).with_name("figures.json")
ALL_METHODS = "sgd,dpsgd,dpsgd-f,dpsgd-f-code,naive,global,global-adapt,quantile,automatic,psac"
PLAIN = ("--learning-rate", "0.1", "--clipping-bound", "1", "--set", "training.schedule=constant")
"""Settings of the csv: the defaults of `equidp.Plan`."""
BINNINGS = {
    "csv": ("--set", "table.binning=standard", "--model", "logistic"),
    "cut": ("--set", "table.binning=cut"),
}
"""Options of each name of the csv."""
COLUMNS = ("accuracy", "loss", "count")


class Cell(NamedTuple):
    """One figure's place: a group's result of a method on a dataset."""

    data: str
    method: str
    group: str


def compare_checkouts(before: Path, after: Path, names: list[str], methods: str, epochs: float) -> bool:
    """Print a table of what two checkouts find; whether all of it is the same."""
    same = True
    print(f"{'data':8s} {'method':14s} {'groups':>6s} {'accuracy, all':>14s} {'loss, all':>14s}  equal")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            old, new = (figures(tree, name, methods, epochs, Path(folder)) for tree in (before, after))
        for method in dict.fromkeys(cell.method for cell in (*old, *new)):
            cells = [cell for cell in dict.fromkeys((*old, *new)) if cell.method == method]
            differ = [cell for cell in cells if old.get(cell) != new.get(cell)]
            accuracy, loss, *_ = new.get(Cell(name, method, "all"), (None, None))
            verdict = f"no: {len(differ)} of {len(cells)} differ" if differ else "yes"
            print(f"{name:8s} {method:14s} {len(cells):6d} {accuracy!s:>14s} {loss!s:>14s}  {verdict}")
            for cell in differ:
                print(f"    {cell.group}: before {old.get(cell)}, after {new.get(cell)}")
            same = same and not differ
        sys.stdout.flush()
    return same


def figures(
    tree: Path, name: str, methods: str, epochs: float, folder: Path
) -> dict[Cell, tuple[float, ...]]:
    """Return accuracy and loss of each method and group, as `equidp compare` of a checkout finds them."""
    work = Path(tempfile.mkdtemp(dir=folder))
    table = ["csv.csv", "--target", "income", "--group", "sex", "--batch-size", "60"]
    chooses = (tree / "src" / "equidp" / "advice" / "chosen_plan.py").exists()  # else settings are published
    data = [*table, *(PLAIN if chooses else ()), *BINNINGS[name]] if name in BINNINGS else [name]
    data += ["--settings", "published"] if chooses and name not in BINNINGS else []
    write_table(work / "csv.csv")
    command = [
        *(sys.executable, "-m", "equidp", "compare", *data, "--methods", methods, "--seeds", "1"),
        *("--epochs", f"{epochs:g}", "--noise-multiplier", "1.5"),
        *("--baseline", "plan", "--json", "out.json", "--directory", "runs"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} with {tree} ended with {done.returncode}:\n{done.stderr}")
    rows = json.loads((work / "out.json").read_text(encoding="utf-8"))["results"]
    return {Cell(name, row["method"], row["group"]): tuple(row[each] for each in COLUMNS) for row in rows}


def keep_figures(version: int) -> None:
    """Write the figures of this checkout, and the FIGURES that they belong to."""
    rows = [[*cell, *found] for cell, found in _small_figures().items()]
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    columns = json.dumps([*Cell._fields, *COLUMNS])
    text = f'{{\n"FIGURES": {version},\n"columns": {columns},\n"rows": [\n  {lines}\n]\n}}\n'
    KEPT.write_text(text, encoding="utf-8")


def moved_figures(version: int) -> list[str]:
    """Sentences about figures that are not as in the file; none: all are as they were."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    if kept["FIGURES"] != version:
        return [
            f"equidp.store.FIGURES={version}; {KEPT.name} was made with {kept['FIGURES']}. Rewrite it: "
            "python benchmarks/same_figures.py --keep"
        ]
    before = {Cell(*row[:3]): tuple(row[3:]) for row in kept["rows"]}
    now = _small_figures()
    return [
        f"{' '.join(cell)}: was {before.get(cell)}, is {now.get(cell)}; raise equidp.store.FIGURES if that "
        "is meant, and rewrite the file (--keep)"
        for cell in dict.fromkeys((*before, *now))
        if not is_close(before.get(cell), now.get(cell))
    ]


def is_close(before: tuple[float, ...] | None, now: tuple[float, ...] | None) -> bool:
    """True where accuracies differ by two examples at most, and losses by 1 part in 10,000.

    Either is accuracy, loss and number of examples.
    """
    if before is None or now is None or before[2] != now[2]:
        return False
    return abs(before[0] - now[0]) <= 2.001 / now[2] and math.isclose(before[1], now[1], rel_tol=1e-4)


def _small_figures() -> dict[Cell, tuple[float, ...]]:
    with tempfile.TemporaryDirectory() as folder:
        found = [figures(HERE, name, ALL_METHODS, 1, Path(folder)) for name in (*BINNINGS, "digits")]
    return {cell: values for each in found for cell, values in each.items()}


def write_table(path: Path) -> None:
    """A table of 600 people, of numbers and texts, the same each time."""
    jobs = ("clerk", "cook", "miner, retired", "nurse")
    rows = [
        f'{18 + 7 * i % 53},{(i * i) % 97 / 10},"{jobs[(3 * i + i // 7) % 4]}",{"F" if i % 3 else "M"},'
        f"{'high' if (18 + 7 * i % 53) + 5 * (i % 3) > 45 else 'low'}"
        for i in range(600)
    ]
    path.write_text("\n".join(["age,hours,job,sex,income", *rows, ""]), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", help="names with commas; default: all that either comparison knows")
    parser.add_argument("--seeds", type=int, default=2, help="of each engine's runs")
    parser.add_argument("--epochs", type=float, help="default: each dataset's own, and 1 with --before")
    parser.add_argument("--out", type=Path, default=Path("same.json"))
    parser.add_argument("--before", type=Path, help="a checkout of another commit")
    parser.add_argument("--after", type=Path, default=HERE, help="default: the one that this file is in")
    parser.add_argument("--methods", default=ALL_METHODS, help="with --before")
    parser.add_argument("--kept", action="store_true", help=f"compare with {KEPT.name}")
    parser.add_argument("--keep", action="store_true", help=f"rewrite {KEPT.name}")
    chosen = parser.parse_args()
    if chosen.kept or chosen.keep:
        from equidp.store import FIGURES

        if chosen.keep:
            keep_figures(FIGURES)
        sys.exit("\n".join(moved_figures(FIGURES)) or None if chosen.kept else None)
    if chosen.before:
        names = (chosen.data or "digits,adult,dutch,csv,cut").split(",")
        trees = [tree.resolve() for tree in (chosen.before, chosen.after)]
        for tree in trees:
            if not (tree / "src" / "equidp").is_dir():
                parser.error(f"{tree} holds no src/equidp; expected a checkout of equidp")
        sys.exit(not compare_checkouts(*trees, names, chosen.methods, chosen.epochs or 1))
    os.environ["OMP_NUM_THREADS"] = "1"  # before the import of torch
    from two_engines import METHODS, compare_engines

    names = (chosen.data or "digits,adult,dutch").split(",")
    if unknown := set(names) - set(METHODS):
        parser.error(f"unknown data {', '.join(sorted(unknown))}; expected some of {', '.join(METHODS)}")
    compare_engines(names, chosen.seeds, chosen.epochs, chosen.out)


if __name__ == "__main__":
    main()
