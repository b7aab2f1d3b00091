"""Compares equidp on real tables with other private learners, and with models without privacy.

    EQUIDP_DATA=data python benchmarks/tables.py [--seeds 14 15 16] [--epsilon 1] [--out tables.jsonl]
    OTHER/bin/python benchmarks/tables.py --learners "diffprivlib, logistic"    # where that is installed

Contenders are the classes of learners.py. Each cell is a row of --out, written as soon as it is known, and
read from there by the next call; contenders that cannot be installed together run by several calls. A seed
draws the split, 80/20, and the contender's noise where it takes a seed. Accuracy, recall (at 0.5), AUC and
log loss are of the test rows; a gap is the largest less the smallest over groups.

Ranges are what code books and common sense say. Levels are those of the whole file: its code book's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from inspect import isabstract
from pathlib import Path

import learners
import numpy as np
import pandas as pd
from learners import Learner, Task
from sklearn.metrics import accuracy_score, log_loss, recall_score, roc_auc_score

Range = tuple[float, float]
METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": lambda happened, risks: accuracy_score(happened, risks > 0.5),
    "AUC": roc_auc_score,
    "log loss": lambda happened, risks: log_loss(happened, risks, labels=[0, 1]),
    "recall": lambda happened, risks: recall_score(happened, risks > 0.5),
}


@dataclass(frozen=True)
class Table:
    """A table of one file or two; columns without a range are categories.

    Attributes:
        read: rows of the data folder.
        target: column of two classes.
        positive: the one that is 1.
        group: column of groups.
        ranges: public ranges of numbers.
    """

    read: Callable[[Path], pd.DataFrame]
    target: str
    positive: str
    group: str
    ranges: dict[str, Range]

    def task(self, data: Path, epsilon: float, seed: int) -> Task:
        """Return the rows of a split."""
        rows = self.read(data)
        texts = [column for column in rows if column not in self.ranges]
        rows[texts] = rows[texts].astype(str)
        rows[self.target] = (rows[self.target] == self.positive).astype(int)
        levels = [column for column in texts if column not in (self.target, self.group)]
        order = np.random.default_rng(seed).permutation(len(rows))
        n = int(0.8 * len(rows))
        return Task(
            train=rows.iloc[order[:n]].reset_index(drop=True),
            test=rows.iloc[order[n:]].reset_index(drop=True),
            target=self.target,
            group=self.group,
            ranges=self.ranges,
            levels={column: sorted(rows[column].unique()) for column in levels},
            epsilon=epsilon,
            delta=float(10 ** np.floor(np.log10(0.1 / n))),
            seed=seed,
        )


ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)
DUTCH = (
    *("sex", "age", "household_position", "household_size", "prev_residence_place", "citizenship"),
    *("country_birth", "edu_level", "economic_status", "cur_eco_activity", "Marital_status", "occupation"),
)


def _adult(data: Path) -> pd.DataFrame:
    options = {"names": ADULT, "skipinitialspace": True, "comment": "|"}
    parts = [pd.read_csv(data / "adult" / name, **options) for name in ("adult.data", "adult.test")]
    rows = pd.concat(parts, ignore_index=True).dropna(subset=["income"])
    return rows.assign(income=rows["income"].str.strip("."))


def _dutch(data: Path) -> pd.DataFrame:
    return pd.read_csv(data / "dutch" / "dutch_census_2001.arff", names=DUTCH, comment="@")


def _file(name: str) -> Callable[[Path], pd.DataFrame]:
    return lambda data: pd.read_csv(data / "tables" / name)


BILLS, PAID, LATE = (
    [f"{name}{month}" for month in months]
    for name, months in (("BILL_AMT", "123456"), ("PAY_AMT", "123456"), ("PAY_", "023456"))
)
TABLES = {
    "Adult": Table(
        _adult,
        "income",
        ">50K",
        "sex",
        {
            "age": (17, 90),
            "fnlwgt": (0, 1_500_000),
            "education-num": (1, 16),
            "capital-gain": (0, 99_999),
            "capital-loss": (0, 5_000),
            "hours-per-week": (0, 99),
        },
    ),
    "Dutch census": Table(_dutch, "occupation", "2_1", "sex", {"age": (1, 17)}),
    "bank calls": Table(
        _file("bank-full.csv"),
        "y",
        "yes",
        "marital",
        {
            "age": (18, 100),
            "balance": (-10_000, 110_000),
            "day": (1, 31),
            "duration": (0, 5_000),
            "campaign": (1, 65),
            "pdays": (-1, 1_000),
            "previous": (0, 300),
        },
    ),
    "credit-card clients": Table(
        _file("credit-card-clients.csv"),
        "default payment",
        "1",
        "SEX",
        {
            "LIMIT_BAL": (0, 1_000_000),
            "AGE": (18, 80),
            **dict.fromkeys(BILLS, (-400_000, 2_000_000)),
            **dict.fromkeys(PAID, (0, 2_000_000)),
            **dict.fromkeys(LATE, (-2, 9)),
        },
    ),
    "law school": Table(
        _file("law_school_clean.csv"),
        "pass_bar",
        "1.0",
        "race",
        {
            "decile1b": (1, 10),
            "decile3": (1, 10),
            "lsat": (10, 48),
            "ugpa": (0, 4),
            "zfygpa": (-4, 4),
            "zgpa": (-7, 5),
            "fam_inc": (1, 5),
            "tier": (1, 6),
        },
    ),
    "German credit": Table(
        _file("german_data_credit.csv"),
        "class-label",
        "1",
        "sex",
        {
            "duration": (0, 72),
            "credit-amount": (0, 20_000),
            "installment-rate": (1, 4),
            "residence-since": (1, 4),
            "age": (18, 80),
            "existing-credits": (1, 4),
            "numner-people-provide-maintenance-for": (1, 2),
        },
    ),
}


def all_learners(base: type[Learner] = Learner) -> dict[str, type[Learner]]:
    """Return the classes of learners.py by name."""
    classes = [each for each in vars(learners).values() if isinstance(each, type) and issubclass(each, base)]
    return {each.name: each for each in classes if not isabstract(each)}


def figures(risks: np.ndarray, task: Task) -> dict[str, float]:
    """Return each metric of the test rows, and its largest less its smallest over groups."""
    happened = task.test[task.target].to_numpy()
    groups = task.test.groupby(task.group).indices.values()
    values = {}
    for name, metric in METRICS.items():
        of_groups = [float(metric(happened[rows], risks[rows])) for rows in groups]
        values[name] = float(metric(happened, risks))
        values[f"{name} gap"] = max(of_groups) - min(of_groups)
    return values


def table(rows: pd.DataFrame) -> str:
    """Return means over seeds, with standard errors, as Markdown."""
    names = [each for metric in METRICS for each in (metric, f"{metric} gap")]
    lines = [
        f"| table | epsilon | contender | {' | '.join(names)} | CPU seconds |",
        f"| --- | --- | --- |{' ---: |' * (len(names) + 1)}",
    ]
    for (name, epsilon, learner), cells in rows.groupby(["table", "epsilon", "learner"], sort=False):
        means, errors = cells[names].mean(), cells[names].sem().fillna(0.0)
        values = " | ".join(f"{means[each]:.3f} ({errors[each]:.3f})" for each in names)
        seconds = f"{cells['seconds'].mean():.0f}"
        lines.append(f"| {name} | {epsilon or ''} | {learner} | {values} | {seconds} |")
    return "\n".join(lines)


def main() -> None:
    """Train what --out lacks, and print a table of it all."""
    known = all_learners()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("tables.jsonl"))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--learners", nargs="+", choices=known, default=list(known))
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--seeds", nargs="+", type=int, default=[14, 15, 16])
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out.exists() else []
    rows = [json.loads(line) for line in lines]
    done = {(each["table"], each["learner"], each["epsilon"], each["seed"]) for each in rows}
    here = Path(__file__).parent
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True)
    for seed in asked.seeds:
        for name in asked.tables:
            task = TABLES[name].task(Path(os.environ["EQUIDP_DATA"]), asked.epsilon, seed)
            for learner in (known[each] for each in asked.learners):
                cell = {"table": name, "learner": learner.name, "epsilon": asked.epsilon * learner.private}
                cell |= {"seed": seed}
                if tuple(cell.values()) in done:
                    continue
                try:
                    package = f"{learner.package} {version(learner.package)}"
                    began = time.process_time()
                    cell |= figures(learner().predict(task), task)
                except (ImportError, PackageNotFoundError) as error:
                    print(f"{learner.name} is left out: {error}", flush=True)
                    continue
                cell |= {"seconds": time.process_time() - began, "package": package}
                rows.append(cell | {"commit": commit.stdout.strip()})
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    if not rows:
        sys.exit("no contender could be imported")
    order = {name: place for place, name in enumerate(known)}
    print(table(pd.DataFrame(rows).sort_values("learner", key=lambda names: names.map(order))))


if __name__ == "__main__":
    main()
