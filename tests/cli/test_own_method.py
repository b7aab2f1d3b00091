"""A method with settings of its own, in one file and one line in a table, is set wherever methods are."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from support.command import people

__all__ = ["people"]  # a fixture

OWN = '''
"""A method that clips at a multiple of a bound, and a program that runs commands with it."""
import contextlib
import io
import json
import sys
from dataclasses import dataclass

from equidp.cli import main
from equidp.kernel.policy import NoState, Policy
from equidp.policies.table import METHODS, Method
from equidp.policies.setting import setting


@dataclass(frozen=True)
class Multiple(Policy):
    half_bound: float = setting(0.5, "Half of the clipping bound.")
    times: int = setting(2, "Multiple of that half.")
    tight: bool = setting(False, "Whether to clip at the half itself.")

    def init(self, setting):
        return NoState()

    def weight(self, state, norm, group):
        return (self.sensitivity(state) / norm).clamp(max=1.0)

    def sensitivity(self, state):
        return self.half_bound * (1 if self.tight else self.times)


METHODS["multiple"] = Method(Multiple, "clips at a multiple of a bound")
ended = []
for arguments in json.load(sys.stdin):
    sys.argv, out, err = ["equidp", *arguments], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            ended.append([end.code or 0, out.getvalue(), " ".join(err.getvalue().split())])
json.dump(ended, sys.stdout)
'''
TABLE = ("people.csv", "--target", "income", "--group", "sex", "--batch-size", "40", "--epochs", "1")
NOISE = ("--noise-multiplier", "2", "--set", "privacy.accountant=rdp")
ONCE = ("--set", "training.half_bound=2", "--set", "training.tight=true", "--seeds", "1", "--jobs", "1")
COMMANDS = {
    "listed": ("methods", "multiple", "--json"),
    "shown": ("methods", "multiple"),
    "train": (
        *("train", *TABLE, "--config", "own.toml", "--method", "multiple", "--set", "training.times=4"),
        *("--set", "privacy.accountant=rdp", "--out", "run"),
    ),
    "compare": ("compare", *TABLE, *ONCE, *NOISE[:2], "--methods", "multiple", "--json", "c.json"),
    "ignored": ("train", *TABLE, "--method", "dpsgd", *NOISE, "--set", "training.times=3", "--dry-run"),
    "mistyped": ("train", *TABLE, "--method", "multiple", "--set", "training.half_bond=3", "--dry-run"),
}


def called(program: str, commands: list, folder) -> list:
    """Run commands in one process: (exit code, standard output, standard error) of each."""
    (folder / "own.py").write_text(program)
    given = json.dumps(commands)
    done = subprocess.run([sys.executable, "own.py"], cwd=folder, capture_output=True, text=True, input=given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def ended(people):
    (people / "own.toml").write_text(
        "[privacy]\nnoise_multiplier = 2\n[training]\nhalf_bound = 0.25\ntimes = 9\n"
    )
    return dict(zip(COMMANDS, called(OWN, list(COMMANDS.values()), people), strict=True))


@pytest.mark.soak
def test_its_settings_are_listed_with_defaults_and_meaning(ended):
    assert json.loads(ended["listed"][1]) == {
        "half_bound": {"default": 0.5, "help": "Half of the clipping bound."},
        "times": {"default": 2, "help": "Multiple of that half."},
        "tight": {"default": False, "help": "Whether to clip at the half itself."},
    }
    assert "clips at a multiple of a bound" in ended["shown"][1]
    assert "half_bound" in ended["shown"][1]


@pytest.mark.soak
def test_train_takes_them_from_its_file_and_the_command_line(ended, people):
    code, _, err = ended["train"]
    assert code == 0, err
    plan = json.loads((people / "run" / "private" / "config.json").read_text())["plan"]["plan"]
    given = plan["method_settings"]
    assert (given["half_bound"], given["times"], given.get("tight", False)) == (0.25, 4, False)


@pytest.mark.soak
@pytest.mark.parametrize("command", ["compare"])
def test_compare_takes_them(ended, command):
    code, out, err = ended[command]
    assert code == 0, err
    assert "multiple" in out


@pytest.mark.soak
def test_a_method_that_does_not_take_them_says_so(ended):
    code, _, err = ended["ignored"]
    assert "times is a setting of multiple; dpsgd ignores it." in err
    assert code == 0, err


@pytest.mark.soak
def test_a_mistyped_setting_gets_the_closest_name(ended):
    code, _, err = ended["mistyped"]
    assert code == 2
    assert "Did you mean 'half_bound'" in err
