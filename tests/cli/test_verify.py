"""`equidp verify` prints each check, and its exit code says whether one failed."""

from __future__ import annotations

import json

import pytest

from support.command import QUICK, people

__all__ = ["people"]  # a fixture
TABLE = ("people.csv", "--target", "income", "--group", "sex")
PLAN = ("--epsilon", "3", "--epochs", "1", "--batch-size", "50", *QUICK, "--out", "run")


@pytest.mark.soak
def test_a_run_is_verified_and_a_changed_card_is_not(people, command):
    assert command("train", *TABLE, *PLAN, cwd=people)[0] == 0
    code, said, _ = command("verify", "run", "--json", "checks.json", cwd=people)
    assert code == 0
    assert "FAILED" not in said
    checks = json.loads((people / "checks.json").read_text())
    assert {each["passed"] for each in checks} == {True}
    assert all(each["check"] in said for each in checks)
    card = people / "run" / "share" / "card.md"
    card.write_text(card.read_text().replace("-differentially private", "-differentially private indeed"))
    code, said, _ = command("verify", "run", cwd=people)
    assert code == 1
    assert "card.md" in said
    assert "1 check failed: files." in said


def test_what_cannot_be_verified_ends_with_what_to_do(people, command):
    for folder in ("nowhere", "."):
        code, said, error = command("verify", folder, cwd=people)
        assert code == 2
        assert not said
        assert "expected" in error.lower() or "check the path" in error
    assert command("verify", cwd=people)[0] == 2


@pytest.mark.soak
def test_a_run_without_privacy_has_no_epsilon_in_strict_json(people, command):
    """JSON has no infinity."""
    asked = ("--method", "sgd", "--epochs", "1", "--batch-size", "50", "--out", "open")
    assert command("train", *TABLE, *asked, cwd=people)[0] == 0
    assert command("verify", "open", "--json", "open.json", cwd=people)[0] == 0
    checks = json.loads((people / "open.json").read_text(), parse_constant=pytest.fail)
    (found,) = (each for each in checks if each["check"] == "epsilon")
    assert found["passed"]
    assert found["recomputed"] is None
