"""A method with settings of its own, in one file and one line in a table, has options wherever methods do."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.command import people

__all__ = ["people"]  # a fixture

OWN = '''
"""Clips like DP-SGD, at a bound that is a multiple of another."""
import sys
from dataclasses import dataclass

from equidp.cli import main
from equidp.kernel.policy import NoState, Policy
from equidp.policies.methods import METHODS, Method
from equidp.policies.setting import setting


@dataclass(frozen=True)
class Doubled(Policy):
    half_bound: float = setting(0.5, "Half of the clipping bound.")
    times: int = setting(2, "Multiple of that half.")
    tight: bool = setting(False, "Whether to clip to the half alone.")

    def init(self, setting):
        return NoState()

    def weight(self, state, norm, group):
        return (self.sensitivity(state) / norm).clamp(max=1.0)

    def sensitivity(self, state):
        return self.half_bound * (1 if self.tight else self.times)


METHODS["doubled"] = Method(Doubled, "clips at a multiple of a bound")
main()
'''
TABLE = ("people.csv", "--target", "income", "--group", "sex", "--batch-size", "40", "--epochs", "1")


@pytest.fixture(scope="module")
def own(people):
    """Runs a user's script, which adds a method and calls the command line."""
    (people / "own.py").write_text(OWN)

    def run(*arguments: str) -> subprocess.CompletedProcess:
        done = subprocess.run(
            [sys.executable, "own.py", *arguments], cwd=people, capture_output=True, text=True
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def test_its_settings_are_listed_with_defaults_and_meaning(own):
    listed = json.loads(own("methods", "doubled", "--json").stdout)
    assert listed == {
        "half_bound": {"default": 0.5, "help": "Half of the clipping bound."},
        "times": {"default": 2, "help": "Multiple of that half."},
        "tight": {"default": False, "help": "Whether to clip to the half alone."},
    }
    shown = own("methods", "doubled").stdout
    assert "clips at a multiple of a bound" in shown
    assert "--half-bound" in shown


def test_they_are_options_of_train_and_keys_of_its_file(own, people):
    (people / "own.toml").write_text("half-bound = 0.25\ntimes = 9\nnoise-multiplier = 2\n")
    done = own("train", *TABLE, "--config", "own.toml", "--method", "doubled", "--times", "4", "--out", "run")
    assert done.returncode == 0, done.stderr
    content = json.loads((people / "run" / "config.json").read_text())
    assert content["plan"]["policy"] == {**content["plan"]["policy"], "half_bound": 0.25, "times": 4}


def test_they_are_options_of_compare_and_ablate(own, people):
    common = (*TABLE, "--half-bound", "2", "--tight", "--seeds", "1", "--jobs", "1")
    done = own("compare", *common, "--methods", "doubled", "--json", "c.json")
    assert done.returncode == 0, done.stderr
    assert "doubled" in (people / "c.json").read_text()
    done = own("ablate", *common, "--method", "doubled", "--errors", "both")
    assert done.returncode == 0, done.stderr


def test_a_method_that_does_not_take_them_says_so(own):
    done = own("train", *TABLE, "--method", "dpsgd", "--epsilon", "3", "--times", "3", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "--times is a setting of doubled; dpsgd ignores it." in done.stderr


def test_a_mistyped_setting_gets_the_closest_name(own):
    done = own("train", *TABLE, "--method", "doubled", "--half-bond", "3")
    assert done.returncode == 2
    assert "Did you mean --half-bound?" in done.stderr


def test_a_setting_named_as_an_option_is_refused(own, people):
    (people / "clash.py").write_text(OWN.replace("times", "seed"))
    done = subprocess.run(
        [sys.executable, "clash.py", "train", "digits"], cwd=people, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "two options --seed: one is a setting of a method; rename that setting" in done.stderr
