"""Compares the default of equidp train on real tables with DP-EBM, boosting and logistic regression.

Reads $EQUIDP_DATA/tables and $EQUIDP_DATA/adult. Splits are 80/20, by numpy's default_rng(seed).permutation.
Figures of a method, a table, an epsilon and a split are appended to --out as they come, and read from there
by the next call:

    EQUIDP_DATA=data python benchmarks/tables.py --out tables.jsonl --splits 11 12 13 14 15

Rows are trained on by `equidp train --missing category`, and others are predicted by `equidp predict`: what
users do. DP-EBM is interpret-core's, with its accountant and ranges of the training rows.

`--csv FILE --target COLUMN --group COLUMN` reads another table instead, with two to twenty classes.
Rows without target or group are left out.

`--methods equidp pairs` adds columns of pairs of columns, each cut into four intervals or levels. Which six
pairs is read from the training rows without privacy, so its figures are above what private pairs would give.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

_LARGE = 300
"""Rows of a group from which on predicted and actual shares are compared."""
_MOST_CLASSES, _MOST_LEVELS = 20, 200
"""Classes of a table, and levels of a column that other models read; further levels are one."""
_PAIRS, _LEVELS = 6, 4
"""Pairs of columns that are added, and intervals or levels of each of their columns."""
_ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)


class Table(NamedTuple):
    """Table with its target, the positive one of two classes, and a column of groups.

    `classes` has the name of every class, the positive one last. With `blind`, other models than equidp do
    not read the groups either.
    """

    read: Callable[[Path], pd.DataFrame]
    target: str
    positive: str
    group: str
    blind: bool = False
    classes: tuple[str, ...] = ()

    def with_classes(self, rows: pd.DataFrame) -> Table:
        """Return the table with the names of its classes."""
        names = set(rows[self.target].map(_text))
        if len(names) > _MOST_CLASSES or len(names) == 1:
            raise SystemExit(f"{self.target!r} has {len(names)} classes; expected 2 to {_MOST_CLASSES}.")
        positive = _text(self.positive)
        return self._replace(classes=tuple(sorted(names, key=lambda name: (name == positive, name))))

    def targets(self, rows: pd.DataFrame) -> np.ndarray:
        """Return the place of each row's class."""
        return np.array([self.classes.index(_text(each)) for each in rows[self.target]])

    def inputs(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the columns that other models read."""
        return rows.drop(columns=[self.target, *([self.group] * self.blind)])


def _text(cell: object) -> str:
    """Return a cell as equidp names a class: whole numbers without a fraction."""
    return str(cell).removesuffix(".0")


def _adult(data: Path) -> pd.DataFrame:
    parts = [
        pd.read_csv(data / "adult" / name, names=_ADULT, skipinitialspace=True, comment="|", na_values="?")
        for name in ("adult.data", "adult.test")
    ]
    rows = pd.concat(parts, ignore_index=True).dropna(subset=["income"])
    return rows.assign(income=rows["income"].str.strip("."))


def _file(name: str) -> Callable[[Path], pd.DataFrame]:
    return lambda data: pd.read_csv(data / "tables" / name)


TABLES = {
    "adult": Table(_adult, "income", ">50K", "sex"),
    "bank": Table(_file("bank-full.csv"), "y", "yes", "marital"),
    "credit": Table(_file("credit-card-clients.csv"), "default payment", "1", "SEX"),
    "law": Table(_file("law_school_clean.csv"), "pass_bar", "1.0", "race"),
    "german": Table(_file("german_data_credit.csv"), "class-label", "1", "sex"),
}


def _predict_by_equidp(train: pd.DataFrame, test: pd.DataFrame, table: Table, epsilon: float) -> np.ndarray:
    """Return probabilities [n, classes]; so do the functions of the other methods."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("train.csv", "test.csv", "run", "answers.csv")]
        train.to_csv(paths[0], index=False)
        test.to_csv(paths[1], index=False)
        command = [sys.executable, "-m", "equidp"]
        options = [f"--target={table.target}", f"--group={table.group}", "--missing=category"]
        options += ["--set=table.test_share=0.01", f"--epsilon={epsilon}", f"--out={paths[2]}"]
        for arguments in (
            ["train", str(paths[0]), *options],
            ["predict", str(paths[2]), str(paths[1]), f"--out={paths[3]}"],
        ):
            done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
        answers = pd.read_csv(paths[3])
    return answers[[f"p({name})" for name in table.classes]].to_numpy()


def _predict_with_pairs(train: pd.DataFrame, test: pd.DataFrame, table: Table, epsilon: float) -> np.ndarray:
    if len(table.classes) != 2:
        raise SystemExit("pairs are chosen for two classes alone; leave the method out.")
    names = [name for name in train.columns if name not in (table.target, table.group)]
    codes = {name: _codes(train[name], test[name]) for name in names}
    coded = pd.DataFrame({name: parts[0].to_numpy() for name, parts in codes.items()})
    happened = table.targets(train)
    model = make_pipeline(OneHotEncoder(), LogisticRegression(max_iter=1000)).fit(coded, happened)
    risks = model.predict_proba(coded)[:, 1]
    rows = pd.DataFrame({"left": happened - risks, "variance": risks * (1 - risks)})

    def gain(pair: tuple[str, str]) -> float:
        """Statistic of a score test of the pair's cells, beside the columns alone."""
        sums = rows.groupby([coded[name] for name in pair]).sum()
        return float((sums["left"] ** 2 / sums["variance"]).sum())

    pairs = sorted(combinations(names, 2), key=gain, reverse=True)[:_PAIRS]
    parts = [train, test]
    for place, part in enumerate(parts):
        added = {f"{a} and {b}": codes[a][place] + " and " + codes[b][place] for a, b in pairs}
        parts[place] = part.assign(**added)
    return _predict_by_equidp(parts[0], parts[1], table, epsilon)


def _codes(train: pd.Series, test: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Intervals between quartiles of a column of numbers, or its four most frequent levels, as text."""
    if train.dtype.kind in "if" and train.nunique() > _LEVELS:
        edges = np.unique(train.quantile(np.arange(1, _LEVELS) / _LEVELS))
        parts = [pd.Series(np.digitize(each, edges), each.index).astype(str) for each in (train, test)]
    else:
        kept = train.value_counts().index[:_LEVELS]
        parts = [each.where(each.isin(kept), "other").astype(str) for each in (train, test)]
    missing = [part.mask(each.isna(), "missing") for part, each in zip(parts, (train, test), strict=True)]
    return missing[0], missing[1]


def _predict_by_ebm(train: pd.DataFrame, test: pd.DataFrame, table: Table, epsilon: float) -> np.ndarray:
    from interpret.privacy import DPExplainableBoostingClassifier

    inputs, others = _without_missing(table.inputs(train)), _without_missing(table.inputs(test))
    settings = {"epsilon": epsilon, "delta": 10 ** np.floor(np.log10(0.1 / len(train)))}
    settings |= {"random_state": 0, "n_jobs": 1}
    return DPExplainableBoostingClassifier(**settings).fit(inputs, table.targets(train)).predict_proba(others)


def _without_missing(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with a category, or the number -1, where a cell is missing: private bins take no missing cells."""
    return rows.apply(lambda column: column.fillna(-1 if column.dtype.kind in "if" else "missing"))


def _predict_by_boosting(train: pd.DataFrame, test: pd.DataFrame, table: Table, _: float) -> np.ndarray:
    inputs = pd.concat([table.inputs(train), table.inputs(test)], keys=["train", "test"])
    for name in inputs.select_dtypes(exclude="number").columns:
        kept = inputs.loc["train", name].value_counts().index[:_MOST_LEVELS]
        inputs[name] = inputs[name].where(inputs[name].isin(kept)).astype("category")
    settings = {"categorical_features": "from_dtype", "random_state": 0}
    model = HistGradientBoostingClassifier(**settings)
    return model.fit(inputs.loc["train"], table.targets(train)).predict_proba(inputs.loc["test"])


def _predict_by_line(train: pd.DataFrame, test: pd.DataFrame, table: Table, _: float) -> np.ndarray:
    """Logistic regression."""
    numbers, texts = (
        make_column_selector(dtype_include="number"),
        make_column_selector(dtype_exclude="number"),
    )
    encoder = make_column_transformer(
        (make_pipeline(SimpleImputer(add_indicator=True), StandardScaler()), numbers),
        (OneHotEncoder(handle_unknown="infrequent_if_exist", max_categories=_MOST_LEVELS), texts),
    )
    model = make_pipeline(encoder, LogisticRegression(max_iter=1000))
    model.fit(table.inputs(train), table.targets(train))
    return model.predict_proba(table.inputs(test))


METHODS = {
    "equidp": (_predict_by_equidp, True),
    "pairs": (_predict_with_pairs, True),
    "dp-ebm": (_predict_by_ebm, True),
    "boosting": (_predict_by_boosting, False),
    "logistic": (_predict_by_line, False),
}
"""Name -> function of its predictions, and whether it is private."""


def _figures(answers: np.ndarray, train: pd.DataFrame, test: pd.DataFrame, table: Table) -> dict[str, float]:
    """Accuracy, AUC, log loss, log loss of the training rows' base rate, and `off`.

    AUC is that of each class against the others, weighted by their rows. `off` is the largest difference
    between mean prediction and what happened, over the latter, in groups of more than 300 test rows: for the
    positive one of two classes, or for every class.
    """
    happened, answers = table.targets(test), np.asarray(answers, dtype=np.float64)
    groups = [
        places
        for places in test.reset_index(drop=True).groupby(table.group).indices.values()
        if len(places) > _LARGE
    ]
    shares = np.bincount(table.targets(train), minlength=len(table.classes)) / len(train)
    each = [(answers[:, place], happened == place) for place in range(len(table.classes))]
    each = [pair for pair in each[len(each) == 2 :] if pair[1].any()]
    rows = [truth.sum() for _, truth in each]
    places = np.arange(len(test)), happened
    return {
        "accuracy": float((answers.argmax(axis=1) == happened).mean()),
        "auc": float(np.average([roc_auc_score(truth, risks) for risks, truth in each], weights=rows)),
        "log loss": float(-np.log(answers[places].clip(1e-12)).mean()),
        "base": float(-np.log(shares[happened]).mean()),
        "off": _off(each, groups),
    }


def _off(pairs: list[tuple[np.ndarray, np.ndarray]], groups: list[np.ndarray]) -> float:
    found = [
        abs(answers[places].mean() / happened[places].mean() - 1)
        for answers, happened in pairs
        for places in groups
        if happened[places].any()
    ]
    return float(max(found, default=0.0))


def _print(found: pd.DataFrame) -> None:
    names = [name for name in ("accuracy", "auc", "log loss", "base", "off") if name in found]
    print(f"| table | method | epsilon | splits | {' | '.join(names)} |")
    print(f"| --- | --- | --- | ---: |{' ---: |' * len(names)}")
    for (table, method, epsilon), rows in found.groupby(["table", "method", "epsilon"]):
        errors = rows[names].sem().fillna(0.0)
        means = rows[names].mean()
        cells = ["" if np.isnan(means[name]) else f"{means[name]:.3f} ({errors[name]:.3f})" for name in names]
        print(f"| {table} | {method} | {epsilon or ''} | {len(rows)} | {' | '.join(cells)} |")


def _own_table(asked: argparse.Namespace) -> dict[str, Table]:
    """Return the table of --csv, by its file's name."""
    if not (asked.target and asked.group):
        raise SystemExit("--csv needs --target and --group.")

    def read(_: Path) -> pd.DataFrame:
        rows = pd.read_csv(asked.csv).drop(columns=["Unnamed: 0"], errors="ignore").drop(columns=asked.drop)
        return rows.dropna(subset=[asked.target, asked.group])

    return {asked.csv.stem: Table(read, asked.target, asked.positive, asked.group, asked.blind)}


def main() -> None:
    """Train what --out lacks, and print means with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tables.jsonl"))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    usual = [each for each in METHODS if each != "pairs"]
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=usual)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--splits", nargs="+", type=int, default=[11, 12, 13, 14, 15])
    parser.add_argument("--csv", type=Path, help="another table, in place of those of the benchmark")
    parser.add_argument("--target", help="of --csv")
    parser.add_argument("--group", help="of --csv")
    parser.add_argument("--positive", default="", help="the positive one of two classes of --csv")
    parser.add_argument("--drop", nargs="+", default=[], help="columns of --csv to leave out")
    parser.add_argument("--blind", action="store_true", help="no model reads the groups of --csv")
    asked = parser.parse_args()
    tables = _own_table(asked) if asked.csv else {name: TABLES[name] for name in asked.tables}
    data = Path() if asked.csv else Path(os.environ["EQUIDP_DATA"])
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out.exists() else []
    found = [json.loads(line) for line in lines]
    done = {(each["table"], each["method"], each["epsilon"], each["split"]) for each in found}
    for split in asked.splits:
        for name, unread in tables.items():
            rows = unread.read(data)
            table = unread.with_classes(rows)
            order = np.random.default_rng(split).permutation(len(rows))
            size = int(0.8 * len(rows))
            train, test = rows.iloc[order[:size]], rows.iloc[order[size:]]
            for method in asked.methods:
                predict, private = METHODS[method]
                if method == "dp-ebm" and len(table.classes) > 2:
                    continue  # it has two classes at most
                for epsilon in asked.epsilons if private else [0.0]:
                    if (name, method, epsilon, split) in done:
                        continue
                    figures = _figures(predict(train, test, table, epsilon), train, test, table)
                    cell = {"table": name, "method": method, "epsilon": epsilon, "split": split, **figures}
                    found.append(cell)
                    with asked.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(cell) + "\n")
    _print(pd.DataFrame(found))


if __name__ == "__main__":
    main()
