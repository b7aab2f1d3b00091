"""A sweep compares every combination of the settings that a method has, and refuses what none has."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import equidp
from equidp.comparison import cells
from equidp.comparison.compare import prepare
from equidp.comparison.plan import ComparisonPlan
from equidp.comparison.sweep import named_methods, parse_sweep, sweep_variants
from equidp.data.dataset import DataSplit
from equidp.errors import SettingError
from equidp.training.plan import Plan
from support.errors import raises_field
from support.toy import toy

PLAN = Plan(batch_size=40, epochs=1, delta=1e-4, learning_rate=0.5)


@dataclass(frozen=True)
class Toys:
    name: str = "toys"
    highlighted_groups: tuple[str, str] | None = None

    def split(self, seed: int) -> DataSplit:
        return DataSplit(toy(120, seed), toy(60, seed + 1000))


def runs(methods, sweep, epsilons=(), plan=PLAN) -> list[tuple[str, str]]:
    return [(run.name, run.setting) for run in sweep_variants(named_methods(methods), plan, epsilons, sweep)]


def test_each_method_runs_at_every_combination_of_what_it_has():
    sweep = {"strict_bound": [5.0, 10.0], "learning_rate": [0.1, 1.0]}
    assert runs(["dpsgd", "global"], sweep) == [
        ("sgd", ""),
        ("dpsgd", "learning_rate=0.1"),
        ("dpsgd", "learning_rate=1"),
        ("global", "strict_bound=5, learning_rate=0.1"),
        ("global", "strict_bound=5, learning_rate=1"),
        ("global", "strict_bound=10, learning_rate=0.1"),
        ("global", "strict_bound=10, learning_rate=1"),
    ]


def test_epsilons_and_settings_make_a_grid():
    found = runs(["dpsgd"], {"clipping_bound": [1.0, 1.0, 2.0]}, epsilons=[1.0, 3.0])
    assert [setting for _, setting in found[1:]] == [
        f"epsilon={epsilon}, clipping_bound={bound}" for epsilon in (1, 3) for bound in (1, 2)
    ]


def test_a_policy_that_was_made_and_settings_of_one_method_are_swept_too():
    plan = Plan(by_method={"dpsgd": {"clipping_bound": 9.0}})
    asked = sweep_variants(
        named_methods(["dpsgd", equidp.PSAC(4.0)]), plan, (), {"clipping_bound": [2.0, 3.0]}
    )
    assert [run.resolve(1000).policy.clipping_bound for run in asked[1:]] == [2.0, 3.0, 2.0, 3.0]
    assert sweep_variants(named_methods([equidp.PSAC(4.0)]), plan, (), {})[1].resolve(1000).policy == (
        equidp.PSAC(4.0)
    )


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_results_have_a_column_for_each_swept_setting_and_runs_are_those_of_a_plain_comparison(
    tmp_path, monkeypatch
):
    given = {"plan": PLAN, "seeds": 1, "jobs": 1, "directory": tmp_path / "runs", "baseline": "plan"}
    plain = equidp.compare(Toys(), methods=["dpsgd"], **given).results
    trained, execute = [], cells.train_cell
    monkeypatch.setattr(cells, "train_cell", lambda *cell: trained.append(cell) or execute(*cell))
    comparison = equidp.compare(Toys(), methods=["dpsgd"], sweep={"clipping_bound": [1.0, 0.1]}, **given)
    assert len(trained) == 1
    rows = comparison.results.query("group == 'all'")
    assert rows["clipping_bound"].tolist()[1:] == [1.0, 0.1]
    assert rows["clipping_bound"].isna().tolist() == [True, False, False]
    assert rows["setting"].tolist() == ["", "clipping_bound=1", "clipping_bound=0.1"]
    assert rows["loss"].tolist()[:2] == plain.query("group == 'all'")["loss"].tolist()
    assert comparison.setup.swept == {"clipping_bound": (1.0, 0.1)}
    assert set(comparison.epochs["clipping_bound"].dropna()) >= {1.0, 0.1}
    equidp.write_report(comparison, tmp_path / "report.html")
    assert "dpsgd (clipping_bound=0.1)" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("sweep", "field"),
    [
        ({"cliping_bound": [1.0]}, "setting to sweep"),
        ({"strict_bound": [1.0]}, "sweep"),
        ({"epsilon": [1.0]}, "sweep"),
        ({"delta": [1e-2, 1e-5]}, "sweep"),
        ({"loss": ["my:loss"]}, "sweep"),
        ({"clipping_bound": []}, "sweep"),
        ({"clipping_bound": 2.0}, "sweep"),
        ({"clipping_bound": [1.0, -1.0]}, "clipping_bound"),
        ({"batch_size": [1000]}, "batch_size"),
        ({"model": ["logistik"]}, "model"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_swept_is_refused_before_anything_is_trained(tmp_path, sweep, field):
    with raises_field(SettingError, field):
        prepare(Toys(), ComparisonPlan(["dpsgd"], 1, PLAN, sweep=sweep), directory=tmp_path)


def test_a_delta_of_one_method_alone_is_refused(tmp_path):
    plan = Plan(batch_size=40, epochs=1, delta=1e-4, by_method={"dpsgd": {"delta": 1e-2}})
    with raises_field(SettingError, "by_method"):
        prepare(Toys(), ComparisonPlan(["dpsgd"], 1, plan), directory=tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("how", ["same", "swept", "by_method"])
@pytest.mark.usefixtures("no_plots")
def test_a_report_states_steps_and_sample_rate_only_where_all_runs_have_them(tmp_path, how):
    plan = replace(PLAN, by_method={"dpsgd": {"epochs": 2}}) if how == "by_method" else PLAN
    sweep = {"batch_size": [30, 60]} if how == "swept" else {}
    comparison = equidp.compare(
        Toys(),
        methods=["dpsgd"],
        plan=plan,
        sweep=sweep,
        seeds=1,
        jobs=1,
        directory=tmp_path,
        baseline="plan",
    )
    equidp.write_report(comparison, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    same = how == "same"
    assert ("Epsilon is of 3 steps" in page and "with probability 0.3333" in page) == same
    assert ("a run&#39;s own number of steps" in page) != same
    assert ("<th>sample rate</th>" in page) == same
    assert ("30, 60" in page) == (how == "swept")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["clipping_bound=1,2"], {"clipping_bound": [1.0, 2.0]}),
        (["clipping-bound=1", "2", "model=mlp"], {"clipping_bound": [1.0, 2.0], "model": ["mlp"]}),
        (["epochs=5", "epochs=10"], {"epochs": [5.0, 10.0]}),
        (["learning_rate=none,0.1"], {"learning_rate": [None, 0.1]}),
        (["batch_size=64"], {"batch_size": [64]}),
        ([], {}),
    ],
)
def test_texts_are_read_by_the_type_of_the_setting(texts, expected):
    assert parse_sweep(texts) == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("1,2", "sweep"),
        ("clipping_bound=", "sweep"),
        ("clipping_bond=1", "setting to sweep"),
        ("clipping_bound=high", "sweep"),
        ("batch_size=1.5", "sweep"),
    ],
)
def test_texts_that_are_no_sweep_are_refused(text, field):
    with raises_field(SettingError, field):
        parse_sweep([text])


@pytest.mark.soak
def test_a_rehearsal_says_how_many_runs_there_are_and_what_they_spend(tmp_path):
    swept = {"clipping_bound": [1.0, 2.0]}
    asked = ComparisonPlan(["dpsgd"], 2, PLAN, [2.0], swept, baseline="plan")
    prepared = prepare(Toys(), asked, directory=tmp_path)
    found = prepared.count_runs()
    assert (len(prepared.cells), len(prepared.first), found.missing) == (6, 3, 6)
    _, *kinds = prepared.kinds
    assert all("clipping_bound=" in kind.label for kind in kinds)
    assert [(kind.epsilon, kind.delta) for kind in kinds] == [(pytest.approx(2, rel=1e-3), 1e-4)] * 2
    assert not list(tmp_path.glob("*.index"))
