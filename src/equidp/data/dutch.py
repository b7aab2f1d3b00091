"""The Dutch census of 2001, as the two papers prepared it: is someone's occupation a high or a low one?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd
from scipy.io import arff

from equidp.data.census import Census, census_file
from equidp.errors import DataError

DUTCH_FILE = census_file(
    "dutch",
    "dutch_census_2001.arff",
    "https://raw.githubusercontent.com/tailequy/fairness_dataset/main/Dutch_census/dutch_census_2001.arff",
    "0e7e3f32668919c239db820f625815e1ea834c71402cdea595e03ef08c8616ef",
)

# The codes of people of 15 and over with a high or a low occupation; the file's header declares more.
_CODES: Mapping[str, tuple[str, ...]] = {
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


@dataclass(frozen=True)
class DutchXu(Census):
    """The Dutch census of 2001 as Xu et al. prepared it: high or low occupation, numbers in [0, 1], sex not among the inputs.

    They count 35 attributes and do not list them. Taking the two attributes with ordered bands, age and education, as numbers, and
    a column for each category but the first of the eight others, gives 2 + 7 + 5 + 1 + 2 + 2 + 2 + 11 + 3 = 35: our reading.
    """

    name: str = "dutch"
    numbers: ClassVar[tuple[str, ...]] = ("age", "edu_level")
    categories: ClassVar[tuple[str, ...]] = (
        "household_position",
        "household_size",
        "prev_residence_place",
        "citizenship",
        "country_birth",
        "economic_status",
        "cur_eco_activity",
        "Marital_status",
    )
    category_codes = _CODES
    class_names = ("low", "high")
    first_category_is_reference = True

    def table(self) -> pd.DataFrame:
        table = _dutch()
        table["target"] = (table["occupation"] == "2_1").astype(np.int64)
        table["group"] = (table["sex"] == "2").astype(np.int64)
        table["moved"] = (table["prev_residence_place"] == "2").astype(np.int64)
        return table.astype(dict.fromkeys(self.numbers, float))


@dataclass(frozen=True)
class DutchEsipova(DutchXu):
    """Dutch as Esipova et al. prepared it: every attribute one-hot, age too, or binary (59 columns), sex among the inputs.

    Their paper names no numerical attribute of Dutch, and their published code takes none.
    """

    name: str = "dutch-esipova"
    numbers: ClassVar[tuple[str, ...]] = ()
    categories: ClassVar[tuple[str, ...]] = (
        "age",
        "household_position",
        "household_size",
        "citizenship",
        "country_birth",
        "edu_level",
        "economic_status",
        "cur_eco_activity",
        "Marital_status",
    )
    binary: ClassVar[tuple[str, ...]] = ("moved", "group")
    first_category_is_reference = False


def _dutch() -> pd.DataFrame:
    content = DUTCH_FILE.content()
    try:
        values, _ = arff.loadarff(io.StringIO(content.decode("utf-8")))
    # scipy lets StopIteration out where the header breaks off, and ValueError where a row does.
    except (arff.ParseArffError, NotImplementedError, ValueError, StopIteration) as error:
        raise DataError(
            f"{DUTCH_FILE.name} cannot be read as ARFF; it is truncated or altered: {error}"
        ) from error
    return pd.DataFrame({name: values[name].astype(str) for name in values.dtype.names})
