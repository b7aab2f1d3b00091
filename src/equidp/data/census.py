"""Two censuses as two papers prepared them: UCI's Adult, and the Dutch census of 2001. Groups are the sexes.

Is someone's income above 50,000 dollars a year, and is someone's occupation high or low?
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from equidp._extras import require_extra
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.origins import ORIGINS, RemoteFile
from equidp.data.table import Unencoded, split_and_encode
from equidp.errors import DataError
from equidp.tables.encode import Categories, TableEncoder
from equidp.tables.fit import fit_encoder
from equidp.tables.intervals import Binning
from equidp.tables.release import Release

with require_extra("tables"):
    import pandas as pd
    from sklearn.model_selection import train_test_split

SEXES = ("Male", "Female")


def _census_file(folder: str, name: str, url: str, sha256: str) -> RemoteFile:
    """Return a file that is read as it is downloaded."""
    return RemoteFile(ORIGINS[folder], name, url, sha256, f"sha256:{sha256}")


@dataclass(frozen=True)
class Preparation:
    """Rules that turn rows of texts into grouped data: public, plain values. Sex is the group.

    Lists of codes are part of the preparation, so the number of inputs does not depend on the split.

    Attributes:
        numbers: columns of numbers, scaled by the training split.
        categories: codes of each other column, one 0/1 input for each code. Other codes are all zeros.
        target: column, and its code for class 1.
        female: column, and its code for group 1.
        class_names: names of classes 0 and 1.
        source: name for the people, the same for every preparation of their rows.
        standardised: scale numbers to mean 0 and deviation 1; otherwise to [0, 1].
    """

    numbers: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    target: tuple[str, str]
    female: tuple[str, str]
    class_names: tuple[str, str]
    source: str
    standardised: bool = False

    def split_rows(self, table: pd.DataFrame, seed: int, test_share: float) -> Unencoded:
        """Split a table of texts by the seed, stratified by class and group."""
        table = table.astype(dict.fromkeys(self.numbers, float)).reset_index(drop=True)
        targets, groups = (
            (table[name] == code).to_numpy(np.int64) for name, code in (self.target, self.female)
        )
        train, test = train_test_split(
            np.arange(len(table)), test_size=test_share, stratify=2 * targets + groups, random_state=seed
        )
        names = SEXES, self.class_names, self.source
        rows = torch.zeros(len(table), 0), torch.from_numpy(targets), torch.from_numpy(groups)
        return Unencoded(table, GroupedDataset(*rows, *names), train, test)


@dataclass(frozen=True)
class Census:
    """A census, prepared in one way.

    Attributes:
        name: name of the source.
        preparation: preparation of its rows.
        rows: function that reads all rows, as texts.
        per_group: sample each sex down to about this number of rows: a row is kept with probability
            `per_group` over its sex's count. None: keep all.
        test_share: share of the rows to test on.
        private_noise: see `ColumnSource`.
        binning: see `ColumnSource`; categories are public codes in any binning.
    """

    name: str
    preparation: Preparation = field(hash=False)
    rows: Callable[[], pd.DataFrame]
    per_group: int | None = None
    test_share: float = 0.2
    highlighted_groups: tuple[str, str] | None = SEXES
    private_noise: float | None = None
    binning: str | None = None

    def __post_init__(self) -> None:
        Binning.parse(self.binning)

    def split(self, seed: int) -> DataSplit:
        """Split by the seed, stratified by class and group; samples rows before if `per_group` is set."""
        return split_and_encode(self, seed)[0]

    def split_rows(self, seed: int) -> Unencoded:
        """Split the rows without encoding them."""
        table = self.rows()
        if self.per_group is None:
            return self.preparation.split_rows(table, seed, self.test_share)
        sex = self.preparation.female[0]
        sizes = table.groupby(sex)[sex].transform("size").to_numpy()
        kept = np.random.default_rng(seed).random(len(table)) < self.per_group / sizes
        rows = self.preparation.split_rows(table[kept], seed, self.test_share)
        note = (
            f"Each sex is sampled down to about {self.per_group:,} rows by its count in the data; epsilon "
            "does not cover that count."
        )
        return replace(rows, notes=(note,))

    def fit_encoder(self, rows: Unencoded, release: Release | None = None) -> TableEncoder:
        preparation = self.preparation
        fitted = fit_encoder(
            rows.features[list(preparation.numbers)],
            rows.train,
            {},
            "refuse",  # prepared rows are complete
            Binning.parse(self.binning),
            standardised=preparation.standardised,
            release=release,
        )
        public = (Categories(name, codes, public=True) for name, codes in preparation.categories.items())
        return replace(fitted, columns=(*fitted.columns, *public))


_ADULT_URL = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_ADULT_FILES = tuple(
    _census_file("adult", name, _ADULT_URL + name, sha256)
    for name, sha256 in (
        ("adult.data", "df25a4e32ed6f1bd4b3910d21a7bd661a09061eced7cb45555a519d9667cc87b"),
        ("adult.test", "ceb625d3b5aeddf1e04cd5eec3268e18af4140fbde5a853a11223deeebcfe0f5"),
    )
)
_ADULT_COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation"),
    *("relationship", "race", "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country"),
    "income",
)  # fmt: skip

# UCI's adult.names. "Never-worked" is left out: its rows have no occupation, so none of them is complete.
_ADULT_CODES: Mapping[str, tuple[str, ...]] = {
    "workclass": (
        *("Federal-gov", "Local-gov", "Private", "Self-emp-inc", "Self-emp-not-inc", "State-gov"),
        "Without-pay",
    ),
    "education": (
        *("10th", "11th", "12th", "1st-4th", "5th-6th", "7th-8th", "9th", "Assoc-acdm", "Assoc-voc"),
        *("Bachelors", "Doctorate", "HS-grad", "Masters", "Preschool", "Prof-school", "Some-college"),
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


def _adult_rows() -> pd.DataFrame:
    """45,222 of the 48,842 rows of both files, as texts."""
    files = (
        pd.read_csv(
            io.BytesIO(file.content()),
            names=_ADULT_COLUMNS,
            dtype=str,
            encoding="ascii",
            skipinitialspace=True,
            keep_default_na=False,
            comment="|",  # of the heading of adult.test
        )
        for file in _ADULT_FILES
    )
    table = pd.concat(files)
    table = table[~(table == "?").any(axis=1)].reset_index(drop=True)
    table["income"] = table["income"].str.rstrip(".")
    return table


_ADULT_XU = Preparation(
    numbers=("age", "education-num", "capital-gain", "capital-loss", "hours-per-week"),
    categories={
        **{
            name: _ADULT_CODES[name] for name in ("workclass", "marital-status", "occupation", "relationship")
        },
        "race": ("White",),
    },
    target=("income", ">50K"),
    female=("sex", "Female"),
    class_names=("<=50K", ">50K"),
    source="adult",
)
_ADULT_ESIPOVA = replace(
    _ADULT_XU, categories={**_ADULT_CODES, "race": ("White",), "sex": ("Female",)}, standardised=True
)

ADULT = Census("adult", _ADULT_XU, _adult_rows)
"""Adult as Xu et al. prepared it: 45,222 complete rows, numbers in [0, 1], categories one-hot.

Sex is not among the inputs. The paper counts 40 attributes and does not list them. Leaving out the final
weight, education (its number stays) and native country, with race made binary, gives 5 + 7 + 7 + 14 + 6 + 1 =
40: our reading.
"""

ADULT_ESIPOVA = Census("adult-esipova", _ADULT_ESIPOVA, _adult_rows, per_group=14_000)
"""Adult as Esipova et al. prepared it: standardised numbers, all categories, sex among the inputs."""


_DUTCH_FILE = _census_file(
    "dutch",
    "dutch_census_2001.arff",
    "https://raw.githubusercontent.com/tailequy/fairness_dataset/main/Dutch_census/dutch_census_2001.arff",
    "0e7e3f32668919c239db820f625815e1ea834c71402cdea595e03ef08c8616ef",
)

# The codes of people of 15 and over with a high or a low occupation; the file's header declares more.
_DUTCH_CODES: Mapping[str, tuple[str, ...]] = {
    "age": tuple(str(band) for band in range(4, 16)),
    "household_position": ("1110", "1121", "1122", "1131", "1132", "1140", "1210", "1220"),
    "household_size": ("111", "112", "113", "114", "125", "126"),
    "prev_residence_place": ("1", "2"),
    "citizenship": ("1", "2", "3"),
    "country_birth": ("1", "2", "3"),
    "edu_level": ("0", "1", "2", "3", "4", "5"),
    "economic_status": ("111", "112", "120"),
    "cur_eco_activity": (
        *("111", "122", "124", "131", "132", "133", "134", "135", "136", "137", "138", "139"),
    ),
    "Marital_status": ("1", "2", "3", "4"),
}  # fmt: skip


def _dutch_rows() -> pd.DataFrame:
    from scipy.io import arff

    content = _DUTCH_FILE.content()
    try:
        values, _ = arff.loadarff(io.StringIO(content.decode("utf-8")))
    # scipy raises StopIteration for a header that breaks off, and ValueError for a row that does.
    except (arff.ParseArffError, NotImplementedError, ValueError, StopIteration) as error:
        raise DataError(
            f"{_DUTCH_FILE.name} cannot be read as ARFF; it is truncated or altered, so download it again: "
            f"{error}",
            field=_DUTCH_FILE.name,
        ) from error
    return pd.DataFrame({name: values[name].astype(str) for name in values.dtype.names})


_DUTCH_XU = Preparation(
    numbers=("age", "edu_level"),
    categories={name: codes[1:] for name, codes in _DUTCH_CODES.items() if name not in ("age", "edu_level")},
    target=("occupation", "2_1"),
    female=("sex", "2"),
    class_names=("low", "high"),
    source="dutch",
)
_DUTCH_ESIPOVA = replace(
    _DUTCH_XU,
    numbers=(),
    categories={
        **{name: codes for name, codes in _DUTCH_CODES.items() if name != "prev_residence_place"},
        "prev_residence_place": ("2",),
        "sex": ("2",),
    },
)

DUTCH = Census("dutch", _DUTCH_XU, _dutch_rows)
"""The Dutch census of 2001 as Xu et al. prepared it: numbers in [0, 1], sex not among the inputs.

The paper counts 35 attributes and does not list them. We take the two attributes with ordered bands, age and
education, as numbers, and a column for each category except the first of the eight others. This gives 2 + 7 +
5 + 1 + 2 + 2 + 2 + 11 + 3 = 35, which is our reading.
"""

DUTCH_ESIPOVA = Census("dutch-esipova", _DUTCH_ESIPOVA, _dutch_rows)
"""Dutch as Esipova et al. prepared it: 59 columns, all one-hot or binary, sex among the inputs.

Their paper names no numerical attribute of Dutch, and their published code takes none.
"""
