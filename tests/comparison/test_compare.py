"""A comparison is fair, goes on where it stopped, and refuses what makes no sense before it trains."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pandas as pd
import pytest
import torch
from torch import nn

import equidp
from equidp.comparison import cells
from equidp.data import open_source
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.errors import DataError, ModelError, SettingError
from equidp.policies.dpsgd import DPSGD
from equidp.training.plan import Plan
from support.errors import raises_field
from support.toy import note_samples, toy


@dataclass(frozen=True)
class Toy:
    """Two groups; a line separates the classes of one, another line those of the other, rarer one."""

    name: str = "toy"
    highlighted_groups: tuple[str, str] | None = None
    n: int = 240

    def split(self, seed: int) -> DataSplit:
        generator = torch.Generator().manual_seed(seed)
        groups = (torch.rand(self.n, generator=generator) < 0.2).long()
        inputs = torch.randn(self.n, 4, generator=generator)
        targets = torch.where(groups == 1, inputs[:, 1] > 0, inputs[:, 0] > 0).long()
        inputs[:, 3] = groups
        whole = GroupedDataset(inputs, targets, groups, ("many", "few"), ("no", "yes"))
        return DataSplit(whole.subset(torch.arange(160)), whole.subset(torch.arange(160, self.n)))


PLAN = Plan(
    model="logistic",
    learning_rate=0.5,
    batch_size=40,
    epochs=3,
    delta=1e-4,
    method_settings={"clipping_bound": 0.5},
)


def compared(tmp_path, **settings) -> equidp.Comparison:
    given = {
        "methods": ["dpsgd", "naive"],
        "seeds": 2,
        "plan": PLAN,
        "directory": tmp_path / "runs",
        "jobs": 1,
        **settings,
    }
    return equidp.compare(Toy(), **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> equidp.Comparison:
    """One comparison, for all tests that need a whole one."""
    return compared(tmp_path_factory.mktemp("whole"))


def cell(method: str, *, seed: int = 0, engine: str = "ghost", plan: Plan = PLAN) -> cells.Cell:
    resolved = plan.for_method(method).with_usual_noise().resolve(160)
    return cells.Cell(Toy(), resolved, seed, engine, callbacks=(cells.Curves(),))


@pytest.mark.soak
def test_every_method_and_seed_is_there_with_the_baseline(whole):
    comparison = whole
    runs_seen = set(zip(comparison.results["method"], comparison.results["seed"], strict=True))
    assert runs_seen == {(method, seed) for method in ("sgd", "dpsgd", "naive") for seed in (0, 1)}
    assert set(comparison.results["group"]) == {"many", "few", "all"}
    assert set(comparison.epochs["epoch"]) == {1, 2, 3}
    epsilons = comparison.results.groupby("method")["epsilon"].max()
    assert epsilons["sgd"] == math.inf
    assert epsilons["naive"] > epsilons["dpsgd"] > 0
    assert comparison.costs()["privacy_cost"].notna().all()


@pytest.mark.soak
def test_relative_paths_are_those_of_each_call(tmp_path, monkeypatch):
    """Worker processes are kept from one comparison to the next, and stay in the folder of the first."""
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        pd.DataFrame(
            {
                "x": [i / 7 for i in range(100)],
                "y": [i % 2 for i in range(100)],
                "g": [(i // 2) % 2 for i in range(100)],
            }
        ).to_csv("people.csv", index=False)
        source = open_source("people.csv", target="y", group="g")
        plan = Plan(epochs=1, batch_size=20)
        equidp.compare(source, methods=["dpsgd"], seeds=2, plan=plan, jobs=2)
        assert len(list((folder / "equidp-runs").glob("*"))) == 2 + 6 + 2  # private, references, trees


def test_a_file_that_changed_between_two_comparisons_is_read_again(tmp_path):
    table = pd.DataFrame({"x": [i / 7 for i in range(100)], "y": [0, 1] * 50, "g": [0, 0, 1, 1] * 25})
    path = tmp_path / "people.csv"
    table.to_csv(path, index=False)
    one = replace(cell("dpsgd"), source=open_source(path, target="y", group="g"))
    before, inputs = one.key, cells.split(one.source, 0).train.inputs
    assert cells.split(one.source, 0).train.inputs is inputs
    table.assign(x=table["x"][::-1].to_numpy()).to_csv(path, index=False)  # as many bytes
    cells.forget_splits()
    assert one.key != before
    assert not torch.equal(cells.split(one.source, 0).train.inputs, inputs)
    table.head(60).to_csv(path, index=False)
    cells.forget_splits()
    again = open_source(path, target="y", group="g").split(0)
    assert len(again.train) + len(again.test) == 60
    assert cells.split_facts(one.source, 0).num_train == len(again.train)


@pytest.mark.soak
def test_runs_of_one_seed_share_split_weights_and_samples():
    data = Toy().split(3)
    runs = [cell(method, seed=3, engine="functional") for method in ("sgd", "dpsgd", "naive")]
    trainers = [each.trainer(data) for each in runs]
    weights = [trainer.model[1].weight for trainer in trainers]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    samples = []
    for trainer in trainers:
        seen = note_samples(trainer)
        trainer.fit()
        samples.append([batch.indices.tolist() for batch in seen])
    assert samples[0] == samples[1] == samples[2]
    other = replace(runs[0], seed=4).trainer(data)
    assert not torch.equal(other.model[1].weight, weights[0])


@pytest.mark.soak
def test_processes_and_engines_agree(whole, tmp_path):
    again = compared(tmp_path, engine="functional", jobs=2)
    for column in ("accuracy", "loss"):
        assert again.results[column].to_list() == pytest.approx(whole.results[column].to_list(), abs=1e-5)


def test_a_run_is_taken_from_disk_only_for_equal_data_and_settings():
    first = cell("dpsgd")
    name = first.key
    assert replace(first).key == name
    for changed in (
        replace(first, seed=1),
        cell("naive"),
        replace(first, engine="functional"),
        cell("dpsgd", plan=replace(PLAN, epochs=4)),
        cell("dpsgd", plan=PLAN.with_changes({"clipping_bound": 0.6})),
        cell("dpsgd", plan=replace(PLAN, schedule="linear")),
        cell("dpsgd", plan=replace(PLAN, optimizer="adam")),
        cell("dpsgd", plan=replace(PLAN, average="ema")),
        cell("dpsgd", plan=replace(PLAN, average_share=0.5)),
        cell("dpsgd", plan=replace(PLAN, model=lambda shape, classes: nn.Linear(shape[0], classes))),
        replace(first, source=Toy(n=250)),
        replace(first, callbacks=(cells.ExampleEpsilons(),)),
    ):
        assert changed.key != name


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_epsilons_of_single_examples_are_recorded_for_private_runs_and_must_not_be_shared(tmp_path):
    comparison = compared(tmp_path, methods=["dpsgd-f"], callbacks=[cells.ExampleEpsilons()])
    table = comparison.tables["sensitive_individual"]
    named = set(zip(table["method"], table["seed"], table["group"], strict=True))
    assert named == {("dpsgd-f", seed, group) for seed in (0, 1) for group in ("many", "few")}
    run = comparison.results[comparison.results["group"] == "all"].set_index(["method", "seed"])["epsilon"]
    for row in table.itertuples():
        assert row.epsilon == run[row.method, row.seed]
        assert 0 < row.median <= row.q95 <= row.group_epsilon <= row.epsilon
    assert "sensitive_individual" not in compared(tmp_path, methods=["dpsgd-f"]).tables
    comparison.write_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "The privacy of each group" in page
    assert "Must not be shared" in page


Mine, Double = (type("Mine", (DPSGD,), {"__module__": module}) for module in ("here", "elsewhere"))
"""Two classes of one name."""


def with_batchnorm(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, classes))


@pytest.mark.parametrize(
    ("settings", "error", "field"),
    [
        ({"methods": ["dpsgdf"]}, SettingError, "method"),
        ({"methods": ["sgd"]}, SettingError, "methods"),
        ({"methods": [Mine(), Double()]}, SettingError, "methods"),
        ({"methods": ["dpsgd", "dpsgd"]}, SettingError, "methods"),
        ({"seeds": None}, SettingError, "seeds"),
        ({"seeds": 0}, SettingError, "seeds"),
        ({"methods": "dpsgd"}, SettingError, "methods"),
        ({"epsilon": 0.0}, SettingError, "epsilon"),
        ({"plan": replace(PLAN, batch_size=161)}, SettingError, "batch_size"),
        ({"delta": 2.0}, SettingError, "delta"),
        ({"gap_tolerance": 0.0}, SettingError, "gap_tolerance"),
        ({"plan": "publishd"}, SettingError, "plan"),
        ({"tune": 1}, SettingError, "tune"),
        ({"against": "sgd"}, SettingError, "against"),
        ({"against": "naive", "methods": ["naive"]}, SettingError, "against"),
        ({"risk": 0.1}, SettingError, "risk"),
        ({"epochs": 2, "epoch": 3}, SettingError, "option"),
        ({"plan": replace(PLAN, model="lenet")}, ModelError, "input_shape"),
        ({"plan": replace(PLAN, model=with_batchnorm)}, ModelError, "1"),
        ({"directory": "/proc/runs"}, SettingError, "folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input_is_refused_before_anything_is_trained(tmp_path, monkeypatch, settings, error, field):
    monkeypatch.setattr(cells, "train_cell", lambda *arguments: pytest.fail("it trained"))
    with raises_field(error, field):
        compared(tmp_path, **settings)


@pytest.mark.parametrize("data", [pd.DataFrame({"a": [1, 2]}), toy(), 3])
def test_data_that_is_no_source_is_refused(data, tmp_path):
    with raises_field(DataError, "data"):
        equidp.compare(data, methods=["dpsgd"], seeds=1, directory=tmp_path / "runs")
