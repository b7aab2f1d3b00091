"""Compares the default of equidp train on real tables with DP-EBM, boosting and logistic regression.

Reads $EQUIDP_DATA/tables and $EQUIDP_DATA/adult. Splits are 80/20, by numpy's default_rng(seed).permutation.
Figures of a method, a table, an epsilon and a split are appended to --out as they come, and read from there
by the next call:

    EQUIDP_DATA=data python benchmarks/tables.py --out tables.jsonl --splits 11 12 13 14 15

Rows are trained on by `equidp train --missing category`, and others are predicted by `equidp predict`: what
users do. DP-EBM is interpret-core's, with its accountant and ranges of the training rows.

`--methods equidp pairs` adds columns of pairs of columns, each cut into four intervals or levels. Which six
pairs is read from the training rows without privacy, so its figures are above what a private choice gives.
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
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

_LARGE = 300
"""Rows of a group from which on predicted and actual shares are compared."""
_PAIRS, _LEVELS = 6, 4
"""Pairs of columns that are added, and intervals or levels of each of their columns."""
_ADULT = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)


class Table(NamedTuple):
    """Table with its target, its positive class and a column of groups."""

    read: Callable[[Path], pd.DataFrame]
    target: str
    positive: str
    group: str


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


def _risks_of_equidp(train: pd.DataFrame, test: pd.DataFrame, table: Table, epsilon: float) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("train.csv", "test.csv", "run", "answers.csv")]
        train.to_csv(paths[0], index=False)
        test.to_csv(paths[1], index=False)
        command = [sys.executable, "-m", "equidp"]
        options = [f"--target={table.target}", f"--group={table.group}", "--missing=category"]
        options += ["--test-share=0.01", f"--epsilon={epsilon}", f"--out={paths[2]}"]
        for arguments in (
            ["train", str(paths[0]), *options],
            ["predict", str(paths[2]), str(paths[1]), f"--out={paths[3]}"],
        ):
            done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
        answers = pd.read_csv(paths[3])
    return answers[_probability_column(answers, table.positive)].to_numpy()


def _risks_with_pairs(train: pd.DataFrame, test: pd.DataFrame, table: Table, epsilon: float) -> np.ndarray:
    names = [name for name in train.columns if name not in (table.target, table.group)]
    codes = {name: _codes(train[name], test[name]) for name in names}
    coded = pd.DataFrame({name: parts[0].to_numpy() for name, parts in codes.items()})
    happened = _positive(train, table)
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
    return _risks_of_equidp(parts[0], parts[1], table, epsilon)


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


def _probability_column(answers: pd.DataFrame, positive: str) -> str:
    text = positive.removesuffix(".0")  # as equidp names whole numbers
    found = [name for name in answers.columns if text in name]
    if len(found) != 1:
        raise SystemExit(f"columns {list(answers.columns)}; expected one with the chance of {positive!r}.")
    return found[0]


def _risks_of_ebm(train: pd.DataFrame, test: pd.DataFrame, table: Table, epsilon: float) -> np.ndarray:
    from interpret.privacy import DPExplainableBoostingClassifier

    inputs = _without_missing(train.drop(columns=table.target))
    delta = 10 ** np.floor(np.log10(0.1 / len(train)))
    model = DPExplainableBoostingClassifier(epsilon=epsilon, delta=delta, random_state=0, n_jobs=1)
    model.fit(inputs, _positive(train, table))
    return model.predict_proba(_without_missing(test.drop(columns=table.target)))[:, 1]


def _without_missing(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows with a category, or the number -1, where a cell is missing: private bins take no missing cells."""
    return rows.apply(lambda column: column.fillna(-1 if column.dtype.kind in "if" else "missing"))


def _risks_of_boosting(train: pd.DataFrame, test: pd.DataFrame, table: Table, _: float) -> np.ndarray:
    inputs = pd.concat([train, test], keys=["train", "test"]).drop(columns=table.target)
    texts = inputs.select_dtypes(exclude="number").columns
    inputs[texts] = inputs[texts].astype("category")
    model = HistGradientBoostingClassifier(categorical_features="from_dtype", random_state=0)
    model.fit(inputs.loc["train"], _positive(train, table))
    return model.predict_proba(inputs.loc["test"])[:, 1]


def _risks_of_logistic(train: pd.DataFrame, test: pd.DataFrame, table: Table, _: float) -> np.ndarray:
    numbers, texts = (
        make_column_selector(dtype_include="number"),
        make_column_selector(dtype_exclude="number"),
    )
    encoder = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(handle_unknown="ignore"), texts)
    )
    model = make_pipeline(encoder, LogisticRegression(max_iter=1000))
    model.fit(train.drop(columns=table.target), _positive(train, table))
    return model.predict_proba(test.drop(columns=table.target))[:, 1]


METHODS = {
    "equidp": (_risks_of_equidp, True),
    "pairs": (_risks_with_pairs, True),
    "dp-ebm": (_risks_of_ebm, True),
    "boosting": (_risks_of_boosting, False),
    "logistic": (_risks_of_logistic, False),
}
"""Name -> function of its predicted risks, and whether it is private."""


def _positive(rows: pd.DataFrame, table: Table) -> np.ndarray:
    return (rows[table.target].astype(str) == table.positive).to_numpy()


def _figures(risks: np.ndarray, train: pd.DataFrame, test: pd.DataFrame, table: Table) -> dict[str, float]:
    """Accuracy, AUC, log loss, log loss of the training rows' base rate, and `off`.

    `off` is the largest difference between mean predicted risk and actual share, over that share, of groups
    of more than 300 test rows.
    """
    happened, risks = _positive(test, table), np.asarray(risks, dtype=np.float64)
    off = [
        abs(risks[places].mean() / happened[places].mean() - 1)
        for places in test.reset_index(drop=True).groupby(table.group).indices.values()
        if len(places) > _LARGE and happened[places].any()
    ]
    base = np.full(len(test), _positive(train, table).mean())
    return {
        "accuracy": float(((risks > 0.5) == happened).mean()),
        "auc": float(roc_auc_score(happened, risks)),
        "log loss": float(log_loss(happened, risks)),
        "base": float(log_loss(happened, base)),
        "off": float(max(off, default=0.0)),
    }


def _print(found: pd.DataFrame) -> None:
    names = ["accuracy", "auc", "log loss", "base", "off"]
    print(f"| table | method | epsilon | splits | {' | '.join(names)} |")
    print(f"| --- | --- | --- | ---: |{' ---: |' * len(names)}")
    for (table, method, epsilon), rows in found.groupby(["table", "method", "epsilon"]):
        errors = rows[names].sem().fillna(0.0)
        cells = [f"{mean:.3f} ({errors[name]:.3f})" for name, mean in rows[names].mean().items()]
        print(f"| {table} | {method} | {epsilon or ''} | {len(rows)} | {' | '.join(cells)} |")


def main() -> None:
    """Trains what --out lacks, and prints means with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tables.jsonl"))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    usual = [each for each in METHODS if each != "pairs"]
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=usual)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 3.0])
    parser.add_argument("--splits", nargs="+", type=int, default=[11, 12, 13, 14, 15])
    asked, data = parser.parse_args(), Path(os.environ["EQUIDP_DATA"])
    lines = asked.out.read_text(encoding="utf-8").splitlines() if asked.out.exists() else []
    found = [json.loads(line) for line in lines]
    done = {(each["table"], each["method"], each["epsilon"], each["split"]) for each in found}
    for split in asked.splits:
        for name in asked.tables:
            table, rows = TABLES[name], TABLES[name].read(data)
            order = np.random.default_rng(split).permutation(len(rows))
            size = int(0.8 * len(rows))
            train, test = rows.iloc[order[:size]], rows.iloc[order[size:]]
            for method in asked.methods:
                risks_of, private = METHODS[method]
                for epsilon in asked.epsilons if private else [0.0]:
                    if (name, method, epsilon, split) in done:
                        continue
                    figures = _figures(risks_of(train, test, table, epsilon), train, test, table)
                    cell = {"table": name, "method": method, "epsilon": epsilon, "split": split, **figures}
                    found.append(cell)
                    with asked.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(cell) + "\n")
    _print(pd.DataFrame(found))


if __name__ == "__main__":
    main()
