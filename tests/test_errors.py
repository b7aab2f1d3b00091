"""Errors say which argument, option or part of the data is wrong."""

from __future__ import annotations

import pickle

import pytest

from equidp._validate import unknown_name
from equidp.errors import DataError, EquidpError, SettingError


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (DataError("column 'age' is missing; choose another."), "column"),
        (EquidpError("--bounds age=1: expected low:high."), ""),
        (EquidpError("--bounds='age'; expected low:high."), "--bounds"),
        (EquidpError("the disk is full."), ""),
        (EquidpError(), ""),
        (SettingError("two options decide the noise.", field="epsilon"), "epsilon"),
        (unknown_name("method", "dpsgf", ["dpsgd"]), "method"),
        (unknown_name("method setting", "sofness", ["softness"]), "method setting"),
    ],
)
def test_the_field_is_what_the_message_starts_with(error, field):
    assert error.field == field


def test_a_field_that_was_given_survives_pickling():
    error = pickle.loads(pickle.dumps(DataError("row 3 is empty.", field="target")))
    assert (error.field, str(error)) == ("target", "row 3 is empty.")
