"""Results are the golden ones of values.json: to 1e-9 where processors round apart, else to 1e-4.

`python benchmarks/golden.py --against COMMIT` compares two commits on one machine to the last bit.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.golden.cases import SECTIONS, attempt, needs_adult

VALUES = json.loads(Path(__file__).with_name("values.json").read_text(encoding="utf-8"))
NUMBER = re.compile(r"-?\d+\.\d{6,}(e[-+]?\d+)?")
QUICK = {"digits dpsgd, plain", "digits dpsgd-f, rates", "one step", "dates.csv", "1 and 1.0.csv"}
CASES = [
    pytest.param(section, name, marks=() if name in QUICK else pytest.mark.soak, id=f"{section}: {name}")
    for section, cases in VALUES.items()
    for name in cases
]


@pytest.mark.parametrize(("section", "name"), CASES)
def test_a_result_is_the_golden_one(section, name):
    if needs_adult(name) and not os.environ.get("EQUIDP_DATA"):
        pytest.skip("EQUIDP_DATA is not set; it names the folder with adult/")
    golden: dict[str, Any] = VALUES[section][name]
    found = attempt(SECTIONS[section]()[name])
    assert_same(json.loads(json.dumps(found["exact"])), golden["exact"])
    size = max(1e-3, math.hypot(*golden["close"])) if golden["close"] else 1.0
    assert found["close"] == pytest.approx(golden["close"], rel=1e-4, abs=1e-4 * size)


def assert_same(found: Any, golden: Any) -> None:
    """Hold values to be equal, but for the last of a number's digits, which processors round apart."""
    if isinstance(golden, dict):
        assert sorted(found) == sorted(golden)
        for name, value in golden.items():
            assert_same(found[name], value)
    elif isinstance(golden, list):
        assert len(found) == len(golden)
        for one, other in zip(found, golden, strict=True):
            assert_same(one, other)
    elif isinstance(golden, str) and NUMBER.fullmatch(golden):
        assert float(found) == pytest.approx(float(golden), rel=1e-9)
    else:
        assert found == golden


def test_every_case_has_a_golden_result():
    assert {(section, name) for section, cases in SECTIONS.items() for name in cases()} == {
        (section, name) for section, cases in VALUES.items() for name in cases
    }
