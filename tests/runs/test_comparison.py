"""`equidp.compare` is `equidp compare`: the same plan on the same data, by the same names."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

import equidp
from equidp.cli import compare as command_module
from equidp.errors import SettingError
from equidp.runs import comparison as module
from equidp.runs.comparison import comparison_of
from equidp.runs.run_file import RunFile
from equidp.training.release import RELEASES, Release
from support.command import equidp_here, people
from support.errors import raises_field

__all__ = ["people"]  # a fixture

OPTIONS = {
    "one epsilon": ("--epsilon 3", {"epsilon": 3}),
    "several": ("--epsilon 1,3", {"epsilon": [1.0, 3.0]}),
    "columns": (
        "--set column.age.range=[0,99] --set column.job.kind=text",
        {"columns": {"age": {"range": (0, 99)}, "job": {"kind": "text"}}},
    ),
    "training": (
        "--noise-multiplier 2 --epochs 4 --set training.momentum=0.9 --set training.engine=functional",
        {"noise_multiplier": 2.0, "epochs": 4, "momentum": 0.9, "engine": "functional"},
    ),
    "releases": (
        "--epsilon 3 --preprocessing private --set privacy.individual=true --class-weight balanced "
        "--threshold base-rate",
        {
            "epsilon": 3.0,
            "preprocessing": "private",
            "individual": True,
            "class_weight": "balanced",
            "threshold": "base-rate",
        },
    ),
    "metric": ("--metric auc --threshold 0.2", {"metric": "auc", "threshold": 0.2}),
    "settings": ("--settings published --epsilon 3", {"plan": "published", "epsilon": 3.0}),
    "search": (
        "--epsilon 3 --tune 4 --against dpsgd --gap-tolerance 0.1",
        {"epsilon": 3.0, "tune": 4, "against": "dpsgd", "gap_tolerance": 0.1},
    ),
    "diagnosis": ("--diagnose", {"callbacks": [equidp.Diagnostics()]}),
    "sweep": ("--sweep clipping_bound=1,2", {"changes": [{"clipping_bound": 1.0}, {"clipping_bound": 2.0}]}),
}


@pytest.fixture
def asked(monkeypatch):
    """(source, plan of the comparison) of each call, in place of a comparison."""
    seen = []

    def note(source, plan, **place):
        seen.append((source, plan))
        raise SettingError("enough.")

    for place in (module, command_module):
        monkeypatch.setattr(place, "run_comparison", note)
    return seen


@pytest.mark.parametrize("name", OPTIONS)
def test_a_call_compares_what_the_command_compares(name, people, asked):
    typed, given = OPTIONS[name]
    path = str(people / "people.csv")
    equidp_here(
        *("compare", path, "--target", "income", "--group", "sex", "--methods", "sgd,dpsgd,dpsgd-f"),
        *typed.split(),
        cwd=people,
    )
    with pytest.raises(SettingError, match="enough"):
        equidp.compare(path, target="income", group="sex", methods=["sgd", "dpsgd", "dpsgd-f"], **given)
    assert len(asked) == 2
    (source, by_command), (same, by_call) = asked
    assert source == same
    plain = [
        {**vars(each), "methods": [*each.methods], "callbacks": repr(each.callbacks)}
        for each in (by_command, by_call)
    ]
    assert plain[0] == plain[1]


def test_a_file_of_options_is_under_those_of_the_call(people, tmp_path, asked):
    (tmp_path / "run.toml").write_text(
        f'[table]\ndata = "{people / "people.csv"}"\ntarget = "income"\ngroup = ["sex"]\n'
        '[privacy]\nepsilon = 3.0\n[training]\nmethod = "dpsgd"\nepochs = 4\nseed = 3\n'
    )
    for given, epsilons in (({}, (3.0,)), ({"epsilon": 2.0}, (2.0,)), ({"noise_multiplier": 1.0}, ())):
        with pytest.raises(SettingError, match="enough"):
            equidp.compare(config=tmp_path / "run.toml", methods=["dpsgd"], **given)
        assert asked[-1][1].epsilons == epsilons
        assert asked[-1][1].options["epochs"] == 4
        assert asked[-1][0].recipe.target == "income"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"epsilons": [3.0]}, "epsilons"),
        ({"method": "dpsgd"}, "option"),
        ({"seed": 1}, "option"),
        ({"ledger": "a.ledger"}, "option"),
        ({"groups": "sex"}, "option"),
        ({"risk": 0.1}, "risk"),
    ],
)
def test_what_no_comparison_has_is_refused(given, field):
    with raises_field(SettingError, field):
        equidp.compare("digits", **given)


@dataclass(frozen=True)
class OwnRelease(Release):
    """Of which a comparison knows nothing."""

    share: float = 0.1
    name, file = "own", "own.json"

    @classmethod
    def from_options(cls, given):
        return cls()


def test_a_release_that_a_comparison_does_not_draw_is_refused(monkeypatch):
    monkeypatch.setitem(RELEASES, "own", OwnRelease)
    with raises_field(SettingError, "releases", "own"):
        comparison_of(RunFile(), None)
