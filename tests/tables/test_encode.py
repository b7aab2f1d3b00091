"""An encoder gives scikit-learn's inputs, and can be saved and used on other rows."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from sklearn.compose import ColumnTransformer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from equidp.tables.encode import TableEncoder
from equidp.tables.fit import fit_encoder


def people(n: int = 90) -> pd.DataFrame:
    index = np.arange(n)
    return pd.DataFrame(
        {
            "age": 20.0 + index % 37,
            "pay": np.where(index % 9, 1000.0 * (index % 11), np.nan),
            "job": np.where(index % 3 == 0, "clerk", "cook").astype(object),
            "city": [f"city {i % 5}" for i in index],
        }
    )


ROWS = np.arange(0, 60)


def fitted(missing: str = "category") -> TableEncoder:
    return fit_encoder(people(), ROWS, {"pay": (0.0, 8000.0)}, missing)


def test_scikit_learn_gives_the_same_inputs():
    table = people().drop(columns="pay")
    other = ColumnTransformer(
        [
            ("age", StandardScaler(), ["age"]),
            ("texts", OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["job", "city"]),
        ]
    ).fit(table.iloc[ROWS])
    ours = fit_encoder(table, ROWS, {}, "refuse").encode(table)
    np.testing.assert_array_equal(ours.numpy(), other.transform(table).astype(np.float32))


def test_a_rows_inputs_do_not_depend_on_other_rows():
    table = people()
    whole = fitted().encode(table)
    for row in (0, 9, 61):
        assert torch.equal(fitted().encode(table.iloc[[row]][["city", "pay", "age", "job"]]), whole[[row]])


def test_the_notes_say_that_the_shape_of_an_input_counts_what_was_found_in_the_data():
    """One row with a city of its own gives every input, and the weights, one more column."""
    table = pd.DataFrame({"city": ["A", "B"] * 10, "age": [1.5, 2.5] * 10})
    train = np.arange(15)
    one = fit_encoder(table, train, {}, "category")
    table.loc[0, "city"] = "Zanzibar"
    other = fit_encoder(table, train, {}, "category")
    shapes = [encoder.encode(table).shape[1] for encoder in (one, other)]
    assert shapes == [3, 4]
    listed = [note for note in other.notes() if "city" in note]
    assert len(listed) == 1
    assert listed[0].endswith("nor their number, which the sizes of inputs and weights show.")
