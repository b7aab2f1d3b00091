"""The command line: what a newcomer types works; what goes wrong is one clear message and exit code 2."""

from __future__ import annotations

import json

import pytest

from support.command import equidp

PEOPLE = ("--target", "income", "--group", "sex", "--batch-size", "40", "--epochs", "2", "--seeds", "2")


def test_a_table_of_ones_own_from_file_to_report(people):
    done = equidp("compare", "people.csv", *PEOPLE, "--methods", "sgd,dpsgd,dpsgd-f", "--epsilon", "2,6",
                  "--report", "r.html", "--json", "r.json", cwd=people)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "What privacy costs: people" in done.stdout
    assert "dpsgd-f (epsilon=2)" in done.stdout
    assert "r.html" in done.stderr
    page = (people / "r.html").read_text()
    assert "--epsilon 2,6" in page
    assert "epsilon does not cover" in page
    assert max(row["epsilon"] or 0 for row in json.loads((people / "r.json").read_text())["results"]) <= 6


def test_individual_privacy_is_released_and_raw_figures_are_asked_for(people):
    common = (
        "compare",
        "--data",
        "people.csv",
        *PEOPLE,
        "--methods",
        "dpsgd-f",
        "--individual",
        "--release-epsilon",
        "3",
    )
    done = equidp(*common, "--report", "open.html", "--json", "open.json", cwd=people)
    assert done.returncode == 0, done.stderr
    assert "released at epsilon 3 a run" in done.stdout
    again = equidp(*common, "--report", "closed.html", "--include-sensitive", cwd=people)
    assert again.returncode == 0, again.stderr
    for name, expected in (("open.html", False), ("closed.html", True)):
        page = (people / name).read_text()
        assert "released with noise" in page
        assert ("must not be shared" in page) == expected
        assert ("true values" in page) == expected
    assert "sensitive" not in (people / "open.json").read_text()


def test_missing_values_can_be_a_category(people):
    done = equidp("compare", "gaps.csv", *PEOPLE, "--methods", "dpsgd", "--missing", "category", cwd=people)
    assert done.returncode == 0, done.stderr


def test_a_large_delta_is_warned_of(people):
    done = equidp("compare", "people.csv", *PEOPLE, "--methods", "dpsgd", "--delta", "0.01", cwd=people)
    assert done.returncode == 0
    assert "warning: delta=0.01 is not below 1/n" in done.stderr


def test_methods_are_listed(people):
    assert "dpsgd-f-code" in equidp("methods", cwd=people).stdout
    assert "Examples" in equidp("compare", "--help", cwd=people).stdout


def test_a_plan_is_accounted_for_without_data(people):
    plan = ("--examples", "60000", "--batch-size", "256", "--epochs", "60")
    done = equidp("account", *plan, "--noise-multiplier", "0.8", cwd=people)
    assert done.returncode == 0
    assert "epsilon 5.1405 at delta 1e-06 (pld)" in done.stdout
    done = equidp("account", *plan, cwd=people)
    assert done.returncode == 2
    assert "expected exactly one of the two" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "dpsgd,fair"), "unknown method 'fair'"),
        (("adlut",), "Did you mean 'adult'"),
        (("adult", "--data", "dutch"), "'adult' and --data 'dutch'; name the data once"),
        (("--data", "nowhere.csv", "--target", "a", "--group", "b"), "there is no file 'nowhere.csv'"),
        (("--data", "people.csv", "--target", "incom", "--group", "sex"), "Did you mean 'income'"),
        (("--data", "people.csv", "--target", "income"), "the column of the groups"),
        (("--data", "one-class.csv", "--target", "income", "--group", "sex"), "one class only"),
        (("--data", "lonely.csv", "--target", "income", "--group", "sex"), "group 'X' has 1 example"),
        (
            ("--data", "gaps.csv", "--target", "income", "--group", "sex"),
            "1 of 200 rows have missing values ('age': 1)",
        ),
        (("--epsilon", "0"), "target_epsilon=0"),
        (("--epsilon", "two"), "--epsilon 'two'"),
        (("--epsilon", ""), "--epsilon ''"),
        (("--tau", "5"), "tau=5.0; expected a number in (0, 1]"),
        (("--epsilon", "1", "--noise-multiplier", "1"), "give one of the two"),
        (("--delta", "1"), "delta=1"),
        (("--batch-size", "5000"), "batch_size=5000 is more than"),
        (("--seeds", "0"), "seeds=0"),
        (("--model", "lenett"), "Did you mean 'lenet'"),
        (("--model", "lenet"), "Choose another model"),
        (("--engine", "gost"), "Did you mean 'ghost'"),
        (("--report", "no/folder/r.html"), "cannot be written"),
        (("--bounds", "age"), "expected column=low:high"),
        (("--include-sensitive", "--individual"), "give --individual and --report too"),
        (("--release-epsilon", "1"), "give --individual too"),
        (("--individual", "--release-epsilon", "0"), "target_epsilon=0"),
        (("--tau", "0"), "tau=0"),
        (("--diagnose-groups", "8"), "give --diagnose too"),
        (("--diagnose-every", "200"), "give --diagnose too"),
        (
            ("--data", "people.csv", "--target", "income", "--group", "sex", "--test-share", "1"),
            "test_share=1",
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


def test_an_unknown_option_is_exit_code_2(people):
    done = equidp("compare", "--metods", "dpsgd", cwd=people)
    assert done.returncode == 2
    assert "--methods" in done.stderr


def test_a_diagnosis_is_asked_for_shown_and_marked(people):
    done = equidp("compare", "people.csv", *PEOPLE, "--methods", "dpsgd", "--diagnose", "--diagnose-every", "5",
                  "--report", "d.html", "--json", "d.json", cwd=people)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "A diagnosed step takes up to" in done.stderr
    assert "must not be shared" in done.stdout
    page = (people / "d.html").read_text()
    assert "Must not be shared: everything in this part is computed from raw training data" in page
    for title in ("Excess risk from gradients turned", "dpsgd: excess risk a step", "Proposition 3"):
        assert title in page
    assert "sensitive" not in (people / "d.json").read_text()


def test_nothing_is_diagnosed_unasked(people):
    done = equidp("compare", "people.csv", *PEOPLE, "--methods", "dpsgd", "--report", "n.html", cwd=people)
    assert "must not be shared" not in done.stdout + done.stderr + (people / "n.html").read_text()


def test_an_ablation_is_a_table(people):
    done = equidp("ablate", "people.csv", "--target", "income", "--group", "sex", "--batch-size", "40",
                  "--epochs", "1", "--seeds", "2", "--json", "a.json", cwd=people)  # fmt: skip
    assert done.returncode == 0, done.stderr
    for word in ("none", "magnitude", "direction", "both", "±"):
        assert word in done.stdout
    assert {row["group"] for row in json.loads((people / "a.json").read_text())} == {"F", "M", "all"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "--diagnose", "--diagnose-every", "0"), "every=0"),
        (("compare", "--diagnose", "--diagnose-groups", "1,42"), "unknown group '42'"),
        (("ablate", "--errors", "length"), "unknown error 'length'"),
        (("ablate", "--method", "sgd"), "does not clip"),
    ],
    ids=" ".join,
)
def test_a_diagnosis_that_makes_no_sense_is_refused(people, command, arguments, message):
    code, _, error = command(*arguments, cwd=people)
    assert code == 2
    assert message in error
    assert "Traceback" not in error
