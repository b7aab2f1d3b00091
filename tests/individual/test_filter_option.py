"""An individual filter as an option of plans and commands: its cost, what trains by it, what refuses it."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings, strategies as st
from safetensors.torch import load_file

import equidp
from comparison.test_compare import Toy
from equidp.accounting.risk import RiskTarget
from equidp.audit import audit_step
from equidp.comparison.cells import Cell
from equidp.comparison.compare import prepare as prepare_comparison, run_comparison
from equidp.comparison.plan import ComparisonPlan
from equidp.data import Recipe
from equidp.errors import SettingError
from equidp.individual.filter_option import filter_callbacks
from equidp.kernel.epsilon import filtered_epsilon
from equidp.kernel.ledger import FilteredStepEvent, StepEvent
from equidp.ledger.format import read_ledger
from equidp.runs import prepare as prepare_module
from equidp.runs.begin import begin
from equidp.runs.config import BudgetFile, RunData, TrainConfig
from equidp.runs.releases import CountsRelease
from equidp.runs.train import train
from equidp.training.build import build
from support.command import people  # noqa: F401
from support.errors import raises_field
from support.toy import toy

PLAN = equidp.Plan(batch_size=60, epochs=4, delta=1e-5, individual_filter=0.5)
TABLE = ("people.csv", "--target", "income", "--group", "sex", "--method", "dpsgd", "--delta", "1e-3")


@settings(max_examples=20, deadline=None)
@given(
    share=st.floats(0.02, 1.0), target=st.floats(0.3, 8.0), rate=st.floats(0.01, 0.5), epochs=st.floats(1, 12)
)
def test_noise_is_that_of_as_many_steps_as_fill_an_account(share, target, rate, epochs):
    plan = equidp.Plan(
        batch_size=round(1000 * rate), epochs=epochs, delta=1e-5, individual_filter=share
    ).resolve("dpsgd", 1000, equidp.Target(target))
    assert plan.full_steps == plan.charged_steps == max(1, round(share * plan.steps))
    step = PoissonSampledDpEvent(plan.sample_rate, GaussianDpEvent(plan.noise_multiplier))
    accountant = RdpAccountant().compose(SelfComposedDpEvent(step, plan.full_steps))
    alone, order = accountant.get_epsilon_and_optimal_order(1e-5)
    assert 0.99 * target < alone <= target
    event = FilteredStepEvent(plan.sample_rate, plan.noise_multiplier, None, order, plan.full_steps)
    assert filtered_epsilon([(event, plan.steps)], 1e-5) == pytest.approx(alone, rel=1e-9)


def test_a_plan_trains_with_accounts_and_costs_its_target():
    plan = PLAN.resolve("dpsgd", 300, equidp.Target(2.0))
    trainer = build(plan, toy(), seed=0, secure=False, callbacks=filter_callbacks(plan))
    run = trainer.fit()
    assert (plan.steps, plan.full_steps) == (20, 10)
    assert isinstance(trainer.event, FilteredStepEvent)
    assert (trainer.event.full_steps, run.facts.steps) == (10, 20)
    assert 1.99 < run.epsilon() <= 2.0
    assert "share of the steps that fill an example's account" in plan.card_options


def test_a_plan_without_it_and_a_method_without_privacy_have_no_accounts():
    without = equidp.Plan(batch_size=60, epochs=4, delta=1e-5).resolve("dpsgd", 300, equidp.Target(2.0))
    plain = PLAN.resolve("sgd", 300)
    assert without.full_steps is None is plain.full_steps
    assert filter_callbacks(without) == [] == filter_callbacks(plain)
    assert PLAN.resolve("dpsgd", 300, equidp.Target(2.0)).noise_multiplier < without.noise_multiplier


REFUSED = {
    "statistics": ("dpsgd-f", {}, {}),
    "rates": ("dpsgd", {"rates": "a=2"}, {}),
    "budgets by group": ("dpsgd", {"epsilon_by_group": "a=1,*=2"}, {}),
    "levels": ("dpsgd", {"epsilon_levels": "1,2"}, {}),
    "views": ("dpsgd", {"views": 2, "augmentation": "flip"}, {}),
    "recalibration": ("dpsgd", {"recalibration": 0.1}, {}),
    "no noise": ("dpsgd", {"noise_multiplier": 0.0}, {"target": equidp.Target()}),
    "risk": ("dpsgd", {}, {"target": equidp.Target(risk=RiskTarget.parse("tpr=0.05@0.01"))}),
    "other releases": ("dpsgd", {}, {"also_spent": ((StepEvent(1.0, 30.0), 1),)}),
    "above 1": ("dpsgd", {"individual_filter": 1.5}, {}),
    "below 0": ("dpsgd", {"individual_filter": -0.1}, {}),
    "not a number": ("dpsgd", {"individual_filter": math.nan}, {}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_go_with_is_refused_by_plans(name):
    method, changes, others = REFUSED[name]
    with raises_field(SettingError, "individual_filter"):
        target = others.pop("target", equidp.Target(2.0))
        PLAN.with_changes(changes).resolve(method, 300, target, **others)


@pytest.fixture
def config(people):  # noqa: F811
    recipe = Recipe("income", group=("sex",))
    return partial(
        TrainConfig, RunData(str(people / "people.csv"), recipe), "dpsgd", PLAN, equidp.Target(2.0)
    )


def test_budgets_releases_and_several_processes_are_refused_before_anything_is_spent(
    config, tmp_path, monkeypatch
):
    with raises_field(SettingError, "individual_filter"):
        config(budget=BudgetFile(tmp_path / "budget", 3.0, 1e-3))
    with raises_field(SettingError, "individual_filter"):
        prepare_module.prepare(config(releases=(CountsRelease(0.1),)))
    two = type("Two", (), {"count": 2})()
    monkeypatch.setattr(prepare_module, "processes_here", lambda: two)
    with raises_field(SettingError, "individual_filter"):
        prepare_module.prepare(config())
    assert not list(tmp_path.iterdir())


def test_audits_and_individual_epsilons_are_refused(tmp_path):
    with raises_field(SettingError, "individual_filter"):
        audit_step(toy(), "dpsgd", plan=PLAN, epsilon=2.0)
    asked = ComparisonPlan(
        ["dpsgd"], 1, epsilons=(2.0,), changes={"individual_filter": 0.5, "delta": 1e-4}, release_epsilon=0.1
    )
    with raises_field(SettingError, "individual_filter"):
        run_comparison(Toy(), asked, directory=tmp_path, jobs=1)


def test_the_command_trains_resumes_and_states_the_epsilon_of_full_accounts(people, command):  # noqa: F811
    options = ("--epsilon", "2", "--batch-size", "40", "--epochs", "3", "--individual-filter", "0.4")
    run = partial(command, cwd=people)
    code, out, _ = run("train", *TABLE, *options, "--dry-run")
    assert code == 0
    assert "(rdp, order " in out
    code, _, err = run("train", *TABLE, *options, "--accountant", "pld", "--out", "filtered")
    assert (code, "Renyi" in err) == (2, True)
    assert "which fill the account of an example" in out
    assert not (people / "filtered").exists()
    assert run("train", *TABLE, *options, "--out", "filtered")[0] == 0
    ((event, steps),) = read_ledger(people / "filtered" / "ledger").entries
    assert event.full_steps == round(0.4 * steps) < steps
    assert 1.98 < filtered_epsilon([(event, steps)], 1e-3) <= 2.0
    card = (people / "filtered" / "card.md").read_text()
    assert "has an account of what its own gradients cost" in card
    assert run("verify", "filtered")[0] == 0
    model = load_file(people / "filtered" / "model.safetensors")
    code, _, err = run("train", "--resume", "filtered")
    assert (code, "0 of them lost" in err) == (0, True)
    torch.testing.assert_close(load_file(people / "filtered" / "model.safetensors"), model)
    assert not list((people / "filtered").glob("sensitive-*"))


def test_a_comparison_trains_by_it_and_keeps_its_runs_apart():
    plain, filtered = (
        equidp.Plan(batch_size=40, epochs=2, delta=1e-4, individual_filter=share).resolve(
            "dpsgd", 160, equidp.Target(2.0)
        )
        for share in (0.0, 0.5)
    )
    cells = [Cell(Toy(), plan, "", math.nan, 0, "ghost") for plan in (plain, filtered)]
    assert cells[0].key != cells[1].key
    found = cells[1].train(Toy().split(0)).results
    assert 1.98 < found["epsilon"].iloc[0] <= 2.0
    assert 1.98 < found["epsilon_rdp"].iloc[0] <= 2.0


def test_a_dry_run_of_a_comparison_states_the_epsilon_of_full_accounts(tmp_path):
    asked = ComparisonPlan(["dpsgd"], 1, PLAN, epsilons=[2.0], baseline="plan")
    (*_, kind) = prepare_comparison(Toy(), asked, directory=tmp_path).kinds
    assert 1.98 < kind.epsilon <= 2.0


def test_a_run_that_was_stopped_goes_on_from_its_accounts(config, tmp_path):
    class Stop(equidp.Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 7:
                trainer.stop(equidp.TrainingStopped("stopped.", 15))

    prepared = begin(prepare_module.prepare(config()), tmp_path / "run")
    with pytest.raises(equidp.TrainingStopped):
        train(tmp_path / "run", callbacks=[Stop()], prepared=prepared)
    assert list((tmp_path / "run").glob("sensitive-accounts-*"))
    said = []
    run, _ = train(tmp_path / "run", on_resume=lambda *steps: said.append(steps))
    assert said == [(7, 0)]
    assert run.facts.steps == prepared.plan.steps > prepared.plan.full_steps
    assert 1.98 < run.epsilon() <= 2.0
    assert not list((tmp_path / "run").glob("sensitive-*"))
