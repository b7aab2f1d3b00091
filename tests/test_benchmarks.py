"""What benchmarks decide, where no measurement is needed."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant

from equidp import GroupedDataset

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
