"""The Dutch census of 2001, as the two papers prepared it: is someone's occupation high or low?"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace

import pandas as pd
from scipy.io import arff

from equidp.data.census import Census, Preparation, census_file
from equidp.errors import DataError

_FILE = census_file(
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


def _rows() -> pd.DataFrame:
    content = _FILE.content()
    try:
        values, _ = arff.loadarff(io.StringIO(content.decode("utf-8")))
    # scipy raises StopIteration for a header that breaks off, and ValueError for a row that does.
    except (arff.ParseArffError, NotImplementedError, ValueError, StopIteration) as error:
        raise DataError(
            f"{_FILE.name} cannot be read as ARFF; it is truncated or altered, so download it again: {error}"
        ) from error
    return pd.DataFrame({name: values[name].astype(str) for name in values.dtype.names})


_XU = Preparation(
    numbers=("age", "edu_level"),
    categories={name: codes[1:] for name, codes in _CODES.items() if name not in ("age", "edu_level")},
    target=("occupation", "2_1"),
    female=("sex", "2"),
    class_names=("low", "high"),
    source="dutch",
)
_ESIPOVA = replace(
    _XU,
    numbers=(),
    categories={
        **{name: codes for name, codes in _CODES.items() if name != "prev_residence_place"},
        "prev_residence_place": ("2",),
        "sex": ("2",),
    },
)

DUTCH = Census("dutch", _XU, _rows)
"""The Dutch census of 2001 as Xu et al. prepared it: numbers in [0, 1], sex not among the inputs.

The paper counts 35 attributes and does not list them. Taking the two attributes with ordered bands, age and
education, as numbers, and a column for each category but the first of the eight others, gives 2 + 7 + 5 + 1 +
2 + 2 + 2 + 11 + 3 = 35: our reading.
"""

DUTCH_ESIPOVA = Census("dutch-esipova", _ESIPOVA, _rows)
"""Dutch as Esipova et al. prepared it: 59 columns, all one-hot or binary, sex among the inputs.

Their paper names no numerical attribute of Dutch, and their published code takes none.
"""
