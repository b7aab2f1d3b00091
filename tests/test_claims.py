"""The README states the numbers of the file of claims, and no others."""

from __future__ import annotations

import pytest
from claims import ROOT, Claims

CLAIMS = Claims.load()
README = (ROOT / "README.md").read_text(encoding="utf-8")
KEPT = [claim for claim in CLAIMS.claims if claim.file]


def by_name(claim):
    return claim.name


def test_the_readme_states_each_claim():
    assert CLAIMS.missing(README) == []


def test_every_number_of_the_readme_is_a_claim_or_claims_nothing():
    assert CLAIMS.unsupported(README) == []


@pytest.mark.parametrize("claim", KEPT, ids=by_name)
def test_kept_files_have_the_numbers(claim):
    assert claim.differences(claim.measure()) == []
