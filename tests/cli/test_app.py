"""The command line: what a newcomer types works; what goes wrong is one clear message and exit code 2."""

from __future__ import annotations

import json

import pytest

from support.command import people

__all__ = ["people"]  # a fixture

TABLE = ("people.csv", "--target", "income", "--group", "sex", "--batch-size", "40", "--epochs", "1")
COMPARE = ("compare", *TABLE, "--seeds", "1", "--jobs", "1")


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_a_table_of_ones_own_from_file_to_report(people, command):
    code, out, err = command(
        *(*COMPARE, "--methods", "sgd,dpsgd", "--epsilon", "1,2", "--report", "r.html", "--json", "r.json"),
        cwd=people,
    )
    assert code == 0, err
    assert "must not be shared" not in out + (people / "r.html").read_text()  # nothing is diagnosed unasked
    assert "What privacy costs: people" in out
    assert "dpsgd (epsilon=2)" in out
    assert "r.html" in err
    page = (people / "r.html").read_text()
    assert "--epsilon 1,2" in page
    assert "epsilon does not cover" in page
    spent = [row["epsilon"] for row in json.loads((people / "r.json").read_text())["results"]]
    assert 1 < max(each or 0 for each in spent) <= 2


@pytest.mark.soak
def test_a_plan_is_accounted_for_as_risk_and_for_people_with_several_rows(people, command):
    plan = ("--examples", "1000", "--batch-size", "50", "--epochs", "5")
    code, out, _ = command("account", *plan, "--risk", "0.05,0.01", "--rows-per-person", "1,2", cwd=people)
    assert code == 0
    lines = out.splitlines()
    attack, two = (line for line in lines if "true-positive rate at most" in line)
    assert "and 5% at 1%, advantage at most " in attack
    assert two.startswith("2 rows of one person: epsilon ")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "dpsgd,fair"), "unknown method 'fair'"),
        (("--data", "nowhere.csv", "--target", "a", "--group", "b"), "there is no file 'nowhere.csv'"),
        (("--epsilon", "0"), "--epsilon 0; expected a finite number above 0"),
        (("--report", "no/folder/r.html"), "cannot be written"),
        (
            ("--data", *TABLE, "--diagnose", "--diagnose-groups", "F,X"),
            "unknown group 'X'",
        ),
    ],
    ids=" ".join,
)
def test_what_goes_wrong_is_one_message_and_exit_code_2(people, command, arguments, message):
    code, output, error = command("compare", *arguments, cwd=people)
    assert code == 2
    assert message in error
    assert "Traceback" not in error
    assert output == ""


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_a_diagnosis_and_individual_privacy_are_on_the_page_marked_and_in_no_other_file(people, command):
    code, out, err = command(*COMPARE, "--methods", "dpsgd-f", "--diagnose", "--diagnose-every", "5",
                             "--set", "privacy.individual=true",
                             "--report", "d.html", "--json", "d.json", cwd=people)  # fmt: skip
    assert code == 0, err
    assert "must not be shared" in out
    page = (people / "d.html").read_text()
    assert "Must not be shared: everything in this part is computed from raw training data" in page
    for title in ("Where the disparity comes from", "dpsgd-f: excess risk a step", "dpsgd-f: gradients"):
        assert title in page
    assert "sensitive" not in (people / "d.json").read_text()
