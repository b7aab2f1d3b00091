"""Checks of settings: what passes, what is refused, and the message."""

from __future__ import annotations

import math

import numpy as np
import pytest

import equidp
from equidp._validate import check_number, check_whole, names, unknown_name
from equidp.errors import SettingError
from support.errors import raises_field


@pytest.mark.parametrize(
    ("interval", "good", "bad"),
    [
        ("(0, 1)", [0.5, np.float32(0.5)], [0, 1, -1, math.nan, "0.5", None]),
        ("[0, 1)", [0, 0.5], [1, -1e-9, math.inf]),
        ("(0, inf)", [1e-300, 7, np.int64(7)], [0, math.inf, math.nan, [1], 10**400, -(10**400)]),
        ("(0, inf]", [1, math.inf], [0, math.nan]),
    ],
)
def test_numbers_within_an_interval_pass_and_no_others(interval, good, bad):
    for value in good:
        check_number(interval, share=value)
    for value in bad:
        with raises_field(SettingError, "share"):
            check_number(interval, share=value)


def test_whole_numbers_from_the_least_pass_and_no_others():
    check_whole(1, steps=1, every=np.int64(3), most=10**400, rounded=4.0)
    for value in (0, 1.5, math.inf, math.nan, "3", None):
        with raises_field(SettingError, "steps"):
            check_whole(1, steps=value)


def test_names_are_between_commas_or_on_lines():
    assert names('age,\n"Hb,\ng/dL", a\r\nb,\n') == ["age", "Hb,\ng/dL", "a", "b"]
    assert names("") == names("\n") == []


def test_an_unknown_name_gives_the_closest_and_all_known_ones():
    assert str(unknown_name("method", "dpsgf", ["sgd", "dpsgd"])) == (
        "unknown method 'dpsgf'. Did you mean 'dpsgd'? Known: dpsgd, sgd."
    )
    assert str(unknown_name("engine", None, ["ghost"])) == "unknown engine None. Known: ghost."


@pytest.mark.parametrize("given", [3, b"run", object(), True])
def test_a_path_that_is_no_text_and_no_path_is_refused(given):
    """A number would be taken for an open file."""
    makers = {
        "path": [equidp.Ledger, equidp.Ledger.read],
        "folder": [equidp.Checkpoints],
    }
    for field, makes in makers.items():
        for make in makes:
            with raises_field(SettingError, field):
                make(given)
