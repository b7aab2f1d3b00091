"""`python -m papers`: its commands give results, and errors that say what to do."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from equidp.errors import SettingError
from papers.ablation import ablate
from support.command import equidp_here, papers, papers_here, people  # noqa: F401
from support.errors import raises_field

TABLE = ("people.csv", "--target", "income", "--group", "sex", "--batch-size", "64", "--epochs", "1")


@pytest.mark.soak
def test_an_ablation_is_a_table(people):  # noqa: F811
    done = papers_here("ablate", *TABLE, "--seeds", "2", "--jobs", "1", "--json", "a.json", cwd=people)
    assert done.returncode == 0, done.stderr
    for word in ("none", "magnitude", "direction", "both", "±"):
        assert word in done.stdout
    assert {row["group"] for row in json.loads((people / "a.json").read_text())} == {"F", "M", "all"}


OWN_METHOD = """
from dataclasses import dataclass

from equidp import DPSGD


@dataclass(frozen=True)
class Half(DPSGD):
    half: float = 0.5
"""


@pytest.mark.soak
def test_an_ablation_takes_a_method_of_the_users_own(people):  # noqa: F811
    (people / "own_half.py").write_text(OWN_METHOD)
    options = (
        "--method",
        "own_half:Half",
        "--set",
        "training.half=0.25",
        "--errors",
        "both",
        "--seeds",
        "1",
        "--jobs",
        "1",
    )
    done = papers("ablate", *TABLE, *options, cwd=people)
    assert done.returncode == 0, done.stderr
    assert "own_half:Half" in done.stdout


@pytest.mark.soak
def test_a_membership_attack_writes_its_figures(people):  # noqa: F811
    options = ("--methods", "sgd,dpsgd", "--shadow-models", "4", "--jobs", "1", "--out", "m.csv")
    done = papers_here("membership", "digits", *options, cwd=people)
    assert done.returncode == 0, done.stderr
    assert set(pd.read_csv(people / "m.csv")["method"]) == {"sgd", "dpsgd"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ablat",), "Did you mean 'ablate'?"),
        (("ablate", "--errors", "length"), 'Invalid value "length" for --errors'),
        (("ablate", "--method", "sgd"), "does not clip"),
        (("ablate", "--method", "fairlens", "--seeds", "1"), "adds terms to losses"),
        (("ablate", "--sedes", "1"), "Did you mean --seeds?"),
        (("ablate", "digits", "--set", "training.features=math:pi"), "unknown features"),
        (("ablate", *TABLE, "--seeds", "1", "--json", "people.csv"), "people.csv"),
        (("ablate", "digits", "--json", "no/folder/a.json"), "cannot be written"),
        (("ablate", "digits", "--device", "cuda:77"), "77"),
        (("leaderboard", "--only", "adlt"), "adlt"),
        (("leaderboard", "--methods", "sgd"), "sgd"),
        (("membership", "--shadow-models", "3", "--methods", "sgd"), "shadow_models=3"),
        (("membership", "--methods", "dpsg"), "dpsg"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_input_gets_one_message_and_a_code(people, arguments, message):  # noqa: F811
    done = papers_here(*arguments, cwd=people)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_commands_of_papers_are_none_of_equidp(tmp_path):
    done = equidp_here("reproduce", cwd=tmp_path)
    assert done.returncode == 2
    assert "unknown command 'reproduce'" in done.stderr


def test_ablations_refuse_penalties():
    with raises_field(SettingError, "method"):
        ablate("digits", method="fairlens", seeds=1)
