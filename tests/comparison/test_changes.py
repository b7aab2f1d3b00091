"""Changes of settings are trained by the methods that have them; the reference once, by the plan's own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

import equidp
from equidp.cli.compare import parse_sweep
from equidp.comparison import cells
from equidp.comparison.compare import prepare
from equidp.comparison.plan import ComparisonPlan
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


def prepared(tmp_path, methods, changes, epsilons=(), plan=PLAN):
    asked = ComparisonPlan(methods, 1, plan, changes=changes, epsilons=epsilons)
    return prepare(Toys(), asked, directory=tmp_path)


def test_each_method_is_trained_by_the_changes_that_it_has(tmp_path):
    changes = parse_sweep(["strict_bound=5,10", "learning_rate=0.1,1"])
    found = prepared(tmp_path, ["dpsgd", "global"], changes)
    assert [(each.name, each.setting) for each in (*found.references, *found.private)] == [
        ("sgd", ""),
        ("dpsgd", "learning_rate=0.1"),
        ("dpsgd", "learning_rate=1"),
        ("global", "strict_bound=5, learning_rate=0.1"),
        ("global", "strict_bound=5, learning_rate=1"),
        ("global", "strict_bound=10, learning_rate=0.1"),
        ("global", "strict_bound=10, learning_rate=1"),
    ]


def test_epsilons_and_changes_make_a_grid_also_of_a_policy_that_was_made(tmp_path):
    changes = [{"clipping_bound": bound} for bound in (1.0, 1.0, 2.0)]
    plan = replace(PLAN, by_method={"dpsgd": {"clipping_bound": 9.0}})
    found = prepared(tmp_path, [equidp.DPSGD(5.0)], changes, (1.0, 3.0), plan).private
    bounds = [each.resolve(120).policy.clipping_bound for each in found]
    assert bounds == [1.0, 2.0, 1.0, 2.0]
    assert found[-1].setting == "epsilon=3, clipping_bound=2"


def test_another_model_has_a_reference_of_its_own(tmp_path):
    found = prepared(tmp_path, ["dpsgd"], [{"model": "logistic"}, {"model": "mlp"}])
    assert [each.setting for each in found.references] == ["", "model=mlp"]
    assert [each.reference for each in found.private] == ["", "model=mlp"]


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_results_have_a_column_for_each_change_and_runs_are_those_of_a_plain_comparison(
    tmp_path, monkeypatch
):
    given = {"plan": PLAN, "seeds": 1, "jobs": 1, "directory": tmp_path / "runs"}
    plain = equidp.compare(Toys(), ["dpsgd"], **given).results
    trained, execute = [], cells.train_cell
    monkeypatch.setattr(cells, "train_cell", lambda *cell: trained.append(cell) or execute(*cell))
    changes = [{"clipping_bound": 1.0}, {"clipping_bound": 0.1}]
    comparison = equidp.compare(Toys(), ["dpsgd"], changes=changes, **given)
    assert len(trained) == 1
    rows = comparison.results.query("group == 'all'")
    assert rows["clipping_bound"].tolist()[1:] == [1.0, 0.1]
    assert rows["clipping_bound"].isna().tolist() == [True, False, False]
    assert rows["setting"].tolist() == ["", "clipping_bound=1", "clipping_bound=0.1"]
    assert rows["loss"].tolist()[:2] == plain.query("group == 'all'")["loss"].tolist()
    assert comparison.setup.swept == {"clipping_bound": (1.0, 0.1)}
    assert set(comparison.epochs["clipping_bound"].dropna()) >= {1.0, 0.1}
    comparison.write_report(tmp_path / "report.html")
    assert "dpsgd (clipping_bound=0.1)" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ([{"cliping_bound": 1.0}], "setting to change"),
        ([{"strict_bound": 1.0}], "strict_bound"),
        ([{"epsilon": 1.0}], "epsilon"),
        ([{"delta": 1e-2}], "delta"),
        ({"clipping_bound": [1.0]}, "changes"),
        ([{"clipping_bound": -1.0}], "clipping_bound"),
        ([{"batch_size": 1000}], "batch_size"),
        ([{"model": "logistik"}], "model"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_changed_is_refused_before_anything_is_trained(tmp_path, changes, field):
    with raises_field(SettingError, field):
        prepared(tmp_path, ["dpsgd"], changes).first_cells()


def test_a_delta_of_one_method_alone_is_refused(tmp_path):
    with raises_field(SettingError, "delta"):
        prepared(tmp_path, ["dpsgd"], [], plan=replace(PLAN, by_method={"dpsgd": {"delta": 1e-2}}))


@pytest.mark.soak
@pytest.mark.parametrize("how", ["same", "changed", "by_method"])
@pytest.mark.usefixtures("no_plots")
def test_a_report_states_steps_and_sample_rate_only_where_all_runs_have_them(tmp_path, how):
    plan = replace(PLAN, by_method={"dpsgd": {"epochs": 2}}) if how == "by_method" else PLAN
    changes = [{"batch_size": 30}, {"batch_size": 60}] if how == "changed" else []
    given = {"plan": plan, "changes": changes, "seeds": 1, "jobs": 1, "directory": tmp_path}
    equidp.compare(Toys(), ["dpsgd"], **given).write_report(tmp_path / "report.html")
    page, same = (tmp_path / "report.html").read_text(), how == "same"
    assert ("Epsilon is of 3 steps" in page and "with probability 0.3333" in page) == same
    assert ("a run&#39;s own number of steps" in page) != same
    assert ("<th>sample rate</th>" in page) == same


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["clipping-bound=1", "2", "model=mlp"], [("clipping_bound", 1.0), ("clipping_bound", 2.0)]),
        (["epochs=5", "epochs=10"], [("epochs", 5.0), ("epochs", 10.0)]),
        (["batch_size=64"], [("batch_size", 64)]),
        ([], []),
    ],
)
def test_texts_are_read_by_the_type_of_the_setting(texts, expected):
    assert [next(iter(each.items())) for each in parse_sweep(texts)] == expected


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("1,2", "--sweep"),
        ("clipping_bound=", "--sweep"),
        ("clipping_bond=1", "option"),
        ("clipping_bound=high", "clipping_bound"),
        ("batch_size=1.5", "batch_size"),
    ],
)
def test_texts_that_are_no_sweep_are_refused(text, field):
    with raises_field(SettingError, field):
        parse_sweep([text])
