"""`equidp audit`: a table and a file, exit code 1 where the claim does not hold, and refusals in words."""

from __future__ import annotations

import json
import re

import pytest

from support.command import people  # noqa: F401 -- a fixture
from support.faults import noise_halved

TABLE = "audit people.csv --target income --group sex --batch-size 40"


@pytest.mark.soak
def test_one_step_of_a_table_is_audited(command, people, tmp_path):  # noqa: F811
    given = f"{TABLE} --method dpsgd-f --runs 150 --seeded --json {tmp_path / 'audit.json'}"
    code, out, err = command(*given.split(), cwd=people)
    assert code == 0
    assert re.sub(r"\d+% done(, about [^.]* left)?\.", "", err).strip() == ""  # nothing but progress
    assert "no more than it claims" in out
    assert all(group in out for group in (" F ", " M ", " all "))
    content = json.loads((tmp_path / "audit.json").read_text())
    assert content["claimed"] == pytest.approx(4.0, rel=1e-3)
    assert [each["group"] for each in content["bounds"]] == ["F", "M", "all"]
    assert list((people / "equidp-audits").iterdir())
    assert command(*given.split(), cwd=people)[1] == out  # from what was kept


@pytest.mark.soak
def test_a_training_is_audited_by_gradient_and_by_data(command, people):  # noqa: F811
    given = f"{TABLE.replace('40', '120')} --model mlp --of training --canaries 100 --epochs 1.5 --seeded"
    for kind in ("gradient", "data"):
        code, out, _ = command(*given.split(), "--by", kind, cwd=people)
        assert code == 0
        assert "audit of training of 3 steps" in out


@pytest.mark.soak
@pytest.mark.parametrize("epsilon", ["4", "8"])
def test_an_audit_takes_the_settings_that_training_takes_at_its_epsilon(command, people, epsilon):  # noqa: F811
    table = ["people.csv", "--target", "income", "--group", "sex", "--epsilon", epsilon]
    audit = command("audit", *table, "--of", "training", "--canaries", "100", "--seeded", cwd=people)
    training = command("train", *table, "--dry-run", cwd=people)
    rates = [re.search(r"learning rate +([0-9.]+)", out)[1] for _, out, _ in (audit, training)]
    assert rates[0] == rates[1]


def test_an_audit_refuses_options_that_the_method_fixes(command, people):  # noqa: F811
    code, _, err = command(*TABLE.split(), "--method", "prototypes", cwd=people)
    assert code == 2
    assert "batch_size" in err


@pytest.mark.soak
def test_a_claim_that_does_not_hold_ends_with_exit_code_1(command, people, monkeypatch):  # noqa: F811
    noise_halved(monkeypatch)
    noise_halved(monkeypatch)
    code, out, _ = command(*TABLE.split(), "--runs", "150", "--directory", "faulty", cwd=people)
    assert code == 1
    assert "found more than it claims" in out
    assert "repeat it with another seed" in out


@pytest.mark.soak
@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--runs 5", "runs=5 are too few to say anything"),
        ("--of training --canaries 5", "count=5 canaries are too few to say anything"),
        ("--method sgd", "claims no epsilon; there is nothing to audit"),
        ("--canaries 100", "--canaries is for audits of a training; give --of training"),
        ("--of training --runs 100", "--runs is for audits of a step; give --of step"),
        ("--noise-multiplier 1", "a step's noise is of --epsilon"),
        ("--epsilon 0", "--epsilon 0; expected a finite number above 0"),
        ("--level 95", "level=95.0"),
        ("--sample-rate 0", "sample_rate=0.0"),
        ("--sample-rate 0.01", "takes 4000 examples"),
        ("--of training --by eyes", "eyes"),
        ("--of training --batch-size 5000", "choose a smaller batch size"),
        ("--json /no/such/folder/x.json", "cannot be written"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_words(command, people, typed, message):  # noqa: F811
    table = TABLE.replace(" --batch-size 40", "") if "--batch-size" in typed else TABLE
    code, out, err = command(*table.split(), *typed.split(), cwd=people)
    assert (code, out) == (2, "")
    assert message in err
