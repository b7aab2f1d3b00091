"""What benchmarks decide, where no measurement is needed."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from equidp import GroupedDataset
from equidp.policies.ranges import OneOf

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize(
    ("after", "equal"),
    [((0.5, 0.25), True), ((0.5, 0.2500000001), False), ((0.4, 0.25), False), (None, False)],
)
def test_checkouts_are_the_same_only_where_every_figure_is(capsys, after, equal):
    script = runpy.run_path(str(BENCHMARKS / "same_figures.py"))
    compare_checkouts, cell = script["compare_checkouts"], script["Cell"]
    found = {"old": (0.5, 0.25), "new": after}

    def figures(tree, name, methods, epochs, folder):
        rows = {cell(name, "sgd", "all"): (0.5, 0.25), cell(name, "sgd", "F"): found[tree.name]}
        return {place: row for place, row in rows.items() if row}

    compare_checkouts.__globals__["figures"] = figures
    assert compare_checkouts(Path("old"), Path("new"), ["csv"], "sgd", 1.0) is equal
    assert ("1 of 2 differ" in capsys.readouterr().out) is not equal


@pytest.mark.parametrize("of_classes", [True, False])
def test_rare_groups_are_thinned_and_figures_are_kept(tmp_path, monkeypatch, capsys, of_classes):
    script = runpy.run_path(str(BENCHMARKS / "rare_classes.py"))
    main, out = script["main"], tmp_path / "rare.jsonl"
    names, groups = ("cat", "horse", "ship"), torch.arange(600) % 3
    targets = groups if of_classes else (torch.arange(600) // 3) % 2
    noise = torch.randn((600, 3), generator=torch.Generator().manual_seed(0))
    inputs = torch.nn.functional.one_hot(targets, 3).float() + 0.1 * noise
    data = GroupedDataset(inputs, targets, groups, names, names if of_classes else ("no", "yes"))
    source = SimpleNamespace(split=lambda seed: SimpleNamespace(train=data, test=data))
    study = script["Study"](lambda: source, "none", ("cat",), (0.1,), 100 if of_classes else None)
    main.__globals__.update(WithFeatures=lambda images, features: source, STUDIES={"images": study})
    main.__globals__.update(CHOICES=((1.0, 0.5),), DELTA=1e-3, BATCHES=10)
    thinned = script["_thinned"](data, "horse", 0.1, 0)
    assert thinned.group_sizes().tolist() == [200, 20, 200]
    monkeypatch.setattr("sys.argv", ["", "--out", str(out), "--epsilons", "30", "--seeds", "0"])
    main()
    once = out.read_text()
    found = {cell["method"]: cell for cell in map(json.loads, once.splitlines())}
    assert list(found) == [name for name in script["METHODS"] if of_classes or name != "priors"]
    assert all(cell["others"] > 0.9 for cell in found.values())
    assert all(found[method]["rare accuracy"] > 0.9 for method in ("balanced", "prototypes"))
    main()
    assert out.read_text() == once
    assert "| images | 10% | prototypes |" in capsys.readouterr().out


def test_ways_to_help_a_group_are_tuned_alike_and_figures_are_kept(tmp_path, monkeypatch, capsys):
    script = runpy.run_path(str(BENCHMARKS / "rates_by_group.py"))
    main, draw, out = script["main"], script["drawn_settings"], tmp_path / "rates.jsonl"
    task, rates = script["TASKS"]["adult"], script["WITH_RATES"]
    for number in range(8):
        shared = draw(task, "dpsgd", number)
        assert draw(task, "naive", number) == shared
        assert all(draw(task, name, number) == {**shared, **draw(task, "asc", number)} for name in rates)
        assert set(draw(task, "asc", number)) - set(shared) == {"rates"}
    targets, groups = torch.arange(600) % 2, (torch.arange(600) % 5 == 0).long()
    data = GroupedDataset(
        torch.nn.functional.one_hot(targets, 2).float(), targets, groups, ("Male", "Female"), ("no", "yes")
    )
    test = data.subset(torch.arange(100))
    source = SimpleNamespace(split=lambda seed: SimpleNamespace(train=data, test=test))
    held, few = script["read_parts"], {"batch_size": OneOf((60,)), "epochs": OneOf((1,))}
    held.__globals__["TASKS"]["adult"] = replace(
        task, source=lambda: source, delta=1e-3, common={**task.common, **few}
    )
    train, validation = held("adult", script["TUNING_SEED"])
    assert (len(train), len(validation), len(held("adult", 0)[1])) == (500, 100, 100)
    asked = ["", "adult", "--out", str(out), "--epsilons", "3", "--seeds", "0", "--draws", "2"]
    methods = ("--methods", "dpsgd", "rates", "asc", "--given", "asc:Male=1.5")
    monkeypatch.setattr("sys.argv", [*asked, *methods])
    main()
    once = out.read_text()
    found = [json.loads(line) for line in once.splitlines()]
    assert [row["method"] for row in found] == [*["dpsgd", "rates", "asc"] * 3, "asc:Male=1.5"]
    assert {**found[-1]["settings"], "rates": None} == {**found[-4]["settings"], "rates": None}
    assert found[-1]["settings"]["rates"] == {"Male": 1.5}
    budgets = {row["method"]: row["epsilons"] for row in found if row["seed"] == 0}
    assert all(2.9 < each <= 3 for name in ("dpsgd", "asc") for each in budgets[name].values())
    assert min(budgets["rates"].values()) < 2.5 < max(budgets["rates"].values()) <= 3
    main()
    assert out.read_text() == once
    assert "| adult, 3 | asc {" in capsys.readouterr().out


def test_rates_that_adapt_cost_at_most_epsilon_whichever_pair_is_chosen_in_each_step(monkeypatch):
    """Sequences of pairs, whatever they follow from, by dp_accounting alone at each order."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = runpy.run_path(str(BENCHMARKS / "adaptive_rates.py"))
    solve, run_epsilon, orders = script["solve_pairs"], script["run_epsilon"], script["ORDERS"]
    rng = np.random.default_rng(0)
    for target, rate, steps, has_statistics in ((3.0, 0.05, 40, True), (1.0, 0.2, 25, False)):
        pairs = solve(target, rate, steps, 1e-5, (1.0, 2.0, 4.0), has_statistics)
        stated = run_epsilon(pairs, rate, steps, 1e-5, has_statistics)
        assert 0.99 * target < stated <= target
        assert 1 == pairs.shares[0] > pairs.shares[1] > pairs.shares[2] > 1 / 4
        every = [script["noise_of_pair"](pairs.noise, share, has_statistics) for share in pairs.shares]
        for _ in range(5):
            accountant = RdpAccountant(orders)
            for chosen in rng.integers(3, size=steps):
                step = GaussianDpEvent(every[chosen])
                accountant.compose(PoissonSampledDpEvent(rate * pairs.multiples[chosen], step))
            assert accountant.get_epsilon(1e-5) <= stated + 1e-9
        throughout = [
            RdpAccountant(orders)
            .compose(PoissonSampledDpEvent(rate * multiple, GaussianDpEvent(noise)), steps)
            .get_epsilon(1e-5)
            for multiple, noise in zip(pairs.multiples, every, strict=True)
        ]
        assert max(throughout) == pytest.approx(stated, rel=1e-6)


def test_rates_that_adapt_grow_for_groups_of_larger_losses(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    script = runpy.run_path(str(BENCHMARKS / "adaptive_rates.py"))
    generator = torch.Generator().manual_seed(0)
    inputs, groups = torch.randn((2000, 4), generator=generator), torch.arange(2000) % 4 // 3
    targets = ((inputs[:, 0] > 0) ^ (groups == 1) & (torch.rand(2000, generator=generator) < 0.4)).long()
    data = GroupedDataset(inputs, targets, groups, ("easy", "hard"), ("no", "yes"))
    settings = {"batch_size": 200, "epochs": 6, "clipping_bound": 1.0, "learning_rate": 1.0}
    settings |= {"schedule": "constant", "average": "none", "speed": 0.3}
    _, facts = script["train_model"](data, settings, "adaptive", 8.0, 1e-5, 0)
    assert facts["mean multiple"]["hard"] > 1.2 > facts["mean multiple"]["easy"] >= 1
    _, plain = script["train_model"](data, settings, "plain", 8.0, 1e-5, 0)
    assert set(plain["mean multiple"].values()) == {1.0}
