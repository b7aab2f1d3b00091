"""The README states the numbers of the file of claims, and no others."""

from __future__ import annotations

import pytest
from claims import ROOT, Claims, Figure, read_values

CLAIMS = Claims.load()
README = (ROOT / "README.md").read_text(encoding="utf-8")
KEPT = [claim for claim in CLAIMS.claims if claim.file]
QUICK = [claim for claim in CLAIMS.claims if claim.name.startswith("compare")]


def by_name(claim):
    return claim.name


def test_the_readme_states_each_claim():
    assert CLAIMS.missing(README) == []


@pytest.mark.parametrize("claim", CLAIMS.claims, ids=by_name)
def test_a_claim_that_the_readme_lacks_is_found(claim):
    assert CLAIMS.missing(" ".join(README.split()).replace(claim.stated(), "")) == [claim.stated()]


def test_every_number_of_the_readme_is_a_claim_or_claims_nothing():
    assert CLAIMS.unsupported(README) == []


@pytest.mark.parametrize(
    "text", ["It is 17% better.", "It takes .5 s.", "It is twice as fast.", "| `x` | 3 |"]
)
def test_a_number_without_a_claim_is_found(text):
    assert len(CLAIMS.unsupported(f"{README}\n{text}\n")) == 1


@pytest.mark.parametrize("claim", KEPT, ids=by_name)
def test_kept_files_have_the_numbers(claim):
    assert claim.differences(claim.measure()) == []


@pytest.mark.soak
@pytest.mark.parametrize("claim", QUICK, ids=by_name)
def test_quick_commands_give_the_numbers(claim, real_data):
    assert claim.differences(claim.measure()) == []


@pytest.mark.parametrize(
    ("read", "text", "values"),
    [
        ("json rows[method=a,group=all].value", '{"rows": [%s]}', [1.0, 3.0]),
        ("json [method=a,seed=1].value", "[%s]", [3.0]),
        ("match is ([\\d.]+) and", "it is 1.5 and more", [1.5]),
        ("count ^yes", "yes\nno\nyes", [2.0]),
    ],
)
def test_outputs_are_read(read, text, values):
    records = (
        '{"method": "a", "group": "all", "seed": 0, "value": 1},'
        '{"method": "b", "group": "all", "seed": 0, "value": 2},'
        '{"method": "a", "group": "all", "seed": 1, "value": 3}'
    )
    assert read_values(read, text.replace("%s", records)) == values


def test_figures_are_means_over_runs():
    (claim,) = (each for each in CLAIMS.claims if each.name == "train-adult-seconds")
    assert claim.differences(["equidp train adult  10.1", "equidp train adult  13.1"]) == []
    (sentence,) = claim.differences(["equidp train adult  100", "equidp train adult  102"])
    assert "seconds is 101 ± 1, not 12.191" in sentence
    assert Figure("json a", 0.0, "json b", scale=100).values('{"a": 0.5, "b": 0.25}') == [25.0]
