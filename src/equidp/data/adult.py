"""UCI's Adult, as the two papers prepared it: is someone's income above 50,000 dollars a year?"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from equidp.data.census import Census, census_file

_ADULT_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
ADULT_FILES = tuple(
    census_file("adult", name, _ADULT_URL + name, sha256)
    for name, sha256 in (
        ("adult.data", "df25a4e32ed6f1bd4b3910d21a7bd661a09061eced7cb45555a519d9667cc87b"),
        ("adult.test", "ceb625d3b5aeddf1e04cd5eec3268e18af4140fbde5a853a11223deeebcfe0f5"),
    )
)
_ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship"),
    *("race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income"),
)  # fmt: skip

# UCI's adult.names. "Never-worked" is left out: its rows have no occupation, so none of them is complete.
_CODES: Mapping[str, tuple[str, ...]] = {
    "workclass": (
        *("Federal-gov", "Local-gov", "Private", "Self-emp-inc", "Self-emp-not-inc", "State-gov", "Without-pay"),
    ),
    "education": (
        *("10th", "11th", "12th", "1st-4th", "5th-6th", "7th-8th", "9th", "Assoc-acdm", "Assoc-voc", "Bachelors"),
        *("Doctorate", "HS-grad", "Masters", "Preschool", "Prof-school", "Some-college"),
    ),
    "marital-status": (
        *("Divorced", "Married-AF-spouse", "Married-civ-spouse", "Married-spouse-absent", "Never-married"),
        *("Separated", "Widowed"),
    ),
    "occupation": (
        *("Adm-clerical", "Armed-Forces", "Craft-repair", "Exec-managerial", "Farming-fishing"),
        *("Handlers-cleaners", "Machine-op-inspct", "Other-service", "Priv-house-serv", "Prof-specialty"),
        *("Protective-serv", "Sales", "Tech-support", "Transport-moving"),
    ),
    "relationship": ("Husband", "Not-in-family", "Other-relative", "Own-child", "Unmarried", "Wife"),
    "native-country": (
        *("Cambodia", "Canada", "China", "Columbia", "Cuba", "Dominican-Republic", "Ecuador", "El-Salvador"),
        *("England", "France", "Germany", "Greece", "Guatemala", "Haiti", "Holand-Netherlands", "Honduras"),
        *("Hong", "Hungary", "India", "Iran", "Ireland", "Italy", "Jamaica", "Japan", "Laos", "Mexico"),
        *("Nicaragua", "Outlying-US(Guam-USVI-etc)", "Peru", "Philippines", "Poland", "Portugal"),
        *("Puerto-Rico", "Scotland", "South", "Taiwan", "Thailand", "Trinadad&Tobago", "United-States"),
        *("Vietnam", "Yugoslavia"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class AdultXu(Census):
    """Adult as Xu et al. prepared it: 45,222 complete rows, numbers in [0, 1], categories one-hot, sex not among the inputs.

    They count 40 attributes and do not list them. Leaving out the final weight, education (its number stays) and native country,
    with race made binary, gives 5 + 7 + 7 + 14 + 6 + 1 = 40: our reading.
    """

    name: str = "adult"
    numbers: ClassVar[tuple[str, ...]] = (
        "age",
        "education-num",
        "capital-gain",
        "capital-loss",
        "hours-per-week",
    )
    categories: ClassVar[tuple[str, ...]] = ("workclass", "marital-status", "occupation", "relationship")
    binary: ClassVar[tuple[str, ...]] = ("white",)
    category_codes = _CODES
    class_names = ("<=50K", ">50K")

    def table(self) -> pd.DataFrame:
        table = _adult()
        table["target"] = (table["income"] == ">50K").astype(np.int64)
        table["group"] = (table["sex"] == "Female").astype(np.int64)
        table["white"] = (table["race"] == "White").astype(np.int64)
        return table


@dataclass(frozen=True)
class AdultEsipova(AdultXu):
    """Adult as Esipova et al. prepared it: standardised numbers, all categories, sex among the inputs, as many men as women.

    Each sex is sampled down to about 14,000 rows: every row is kept with probability 14,000 over its sex's count.
    """

    name: str = "adult-esipova"
    per_group: int = 14_000
    categories: ClassVar[tuple[str, ...]] = (
        "workclass",
        "education",
        "marital-status",
        "occupation",
        "relationship",
        "native-country",
    )
    binary: ClassVar[tuple[str, ...]] = ("white", "group")
    standardised = True

    def rows(self, table: pd.DataFrame, seed: int) -> pd.DataFrame:
        sizes = table.groupby("group")["group"].transform("size").to_numpy()
        return table[np.random.default_rng(seed).random(len(table)) < self.per_group / sizes]

    def notes(self) -> tuple[str, ...]:
        return (
            *super().notes(),
            f"Each sex is sampled down to about {self.per_group:,} rows by its count in the data, which epsilon does not cover.",
        )


def _adult() -> pd.DataFrame:
    """The rows of both files without a missing value: 45,222 of 48,842."""
    rows: list[Sequence[str]] = []
    for file in ADULT_FILES:
        text = io.StringIO(file.content().decode("ascii"))
        rows += [row for row in csv.reader(text, skipinitialspace=True) if len(row) == len(_ADULT_COLUMNS)]
    table = pd.DataFrame(rows, columns=_ADULT_COLUMNS)
    table = table[~(table == "?").any(axis=1)].reset_index(drop=True)
    table["income"] = table["income"].str.rstrip(".")
    return table.astype(dict.fromkeys(AdultXu.numbers, float))
