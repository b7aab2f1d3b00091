"""Texts of options become typed values, or errors that show the form."""

from __future__ import annotations

import pytest

from equidp.cli.options import parse_bounds
from equidp.errors import SettingError


def test_bounds_are_ranges_by_column():
    assert parse_bounds("age=0:100, hours=-1.5:99") == {"age": (0.0, 100.0), "hours": (-1.5, 99.0)}
    assert parse_bounds("") == {}
    with pytest.raises(SettingError, match="twice"):
        parse_bounds("age=0:1,age=0:2")
    for wrong in ("age", "age=5", "age=9:1", "=0:1", "age=0:inf", "age=a:b", "age=0:1:2"):
        with pytest.raises(SettingError, match="low:high"):
            parse_bounds(wrong)
