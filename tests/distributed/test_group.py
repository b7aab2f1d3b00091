"""Several processes hold the guarantee of one: disjoint shards, one bound, noise once, each step charged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from scipy import stats

from equidp.errors import SettingError
from equidp.kernel.noise import SystemRandomness
from equidp.kernel.processes import Processes
from equidp.kernel.sampling import PoissonSampler
from equidp.policies.table import METHODS
from equidp.training.processes import processes_here
from support import several
from support.errors import raises_field
from support.processes import together


@given(st.integers(1, 500), st.integers(1, 40))
def test_shards_are_disjoint_and_together_all_examples(n, count):
    if count > n:
        with raises_field(SettingError, "processes", count, n):
            Processes(0, count).shard(n)
        return
    shards = [range(n)[Processes(rank, count).shard(n)] for rank in range(count)]
    assert [index for shard in shards for index in shard] == list(range(n))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_samples_of_all_processes_are_one_poisson_sample():
    """Sizes are binomial, and members of two shards uncorrelated; 5 standard errors, false alarm below 1e-5
    each, with the system's randomness."""
    n, q, steps, count = 91, 0.2, 4000, 3
    taken = np.zeros((steps, n))
    for rank in range(count):
        sampler = PoissonSampler(n, q, steps, SystemRandomness(), Processes(rank, count))
        for step, sample in enumerate(sampler):
            taken[step, sample.numpy()] += 1
    assert taken.max() == 1
    variance, sizes = n * q * (1 - q), taken.sum(axis=1)
    assert abs(sizes.mean() - n * q) < 5 * np.sqrt(variance / steps)
    assert abs(sizes.var() / variance - 1) < 5 * np.sqrt((2 + 1 / variance) / steps)
    rates = taken.mean(axis=0)
    assert (abs(rates - q) < 5 * np.sqrt(q * (1 - q) / steps)).all()


NORMS = 0.0, 1e-8, 1.0, 40.0, 1e12, np.inf


def batches_with_and_without_one() -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Gradients and groups of both processes, without and with one more example in either, of each norm."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for norm in NORMS:
        for rank in (0, 1):
            direction = torch.randn(1, 4, generator=generator)
            extra = norm * direction / direction.norm() if np.isfinite(norm) else torch.full((1, 4), np.inf)
            gradients = [
                torch.randn(2 * (1 - rank), 4, generator=generator),
                torch.randn(3, 4, generator=generator),
            ]
            groups = [torch.zeros(len(each), dtype=torch.int64) for each in gradients]
            more, whose = list(gradients), list(groups)
            more[rank] = torch.cat([gradients[rank], extra])
            whose[rank] = torch.cat([groups[rank], torch.tensor([2])])
            batches += [(gradients, groups), (more, whose)]
    return batches


@pytest.fixture(scope="module")
def both():
    """Return by name what two processes found (`several.everything`): pairs."""
    first, second = together(
        2, several.everything, batches_with_and_without_one(), [[0, 0], [5, 0], [0, 5], [90, 3]]
    )
    return {name: (first[name], second[name]) for name in first}


@pytest.mark.soak
def test_a_seed_gives_one_model_whatever_the_number_of_processes():
    """For every method: weights, the policy's state and the ledger. Noisy sums are rounded to a grid of
    1/1024 of the noise, so a sum that differs in its last bits may be rounded to the next point."""
    alone = several.trained()
    everywhere = together(3, several.trained)
    for name in METHODS:
        weights, state, entries = alone[name]
        for found in everywhere:
            assert torch.allclose(found[name][0], weights, atol=1e-3, rtol=0), name
            assert all(torch.allclose(a, b, atol=1e-2) for a, b in zip(found[name][1], state, strict=True))
            assert found[name][2] == entries
        first = everywhere[0][name]
        assert all(torch.equal(found[name][0], first[0]) for found in everywhere), name


@pytest.mark.soak
def test_people_with_several_rows_are_trained_on_by_several_processes(both):
    alone = several.of_people()
    for found in both["of_people"]:
        for method, (weights, *_) in found.items():
            assert torch.allclose(weights, alone[method][0], atol=1e-3, rtol=0)
    assert torch.equal(*both["in_views"])


@pytest.mark.soak
def test_noise_that_another_process_draws_leaves_the_samples_of_a_seed_in_step(both):
    """Samples of a seed are drawn for 64 steps at once: those of the next come after the noise of all of
    these."""
    (weights, *_) = several.trained_for_two_blocks()["dpsgd-f"]
    for found in both["trained_for_two_blocks"]:
        assert torch.allclose(found["dpsgd-f"][0], weights, atol=5e-3, rtol=0)


@pytest.mark.soak
def test_noise_has_the_right_variance_and_is_added_once(both):
    """sigma S / b = 3 * 2 / 5 in each coordinate of 200,000 (chi-square, false alarm 1e-6), and all processes
    get the same."""
    first, second = both["noisy_steps"]
    assert torch.equal(first, second)
    draws = first.double().flatten() / (3.0 * 2.0 / 5.0)
    low, high = stats.chi2(draws.numel()).ppf([5e-7, 1 - 5e-7])
    assert low < float((draws**2).sum()) < high
    assert len(first.flatten().unique()) > draws.numel() / 40  # a grid of 1/1024, not one draw repeated
    assert abs(float(np.corrcoef(first[:2].numpy())[0, 1])) < 5 / np.sqrt(several.WIDTH)


@pytest.mark.soak
def test_one_example_moves_the_sum_over_processes_by_at_most_the_sensitivity(both):
    """For every policy, in either process, at norms from 0 to infinity; the other process has others' or
    none."""
    first, second = both["moved"]
    for name, found in first.items():
        assert all(torch.equal(a, b) for (a, _), (b, _) in zip(found, second[name], strict=True)), name
        for (without, sensitivity), (with_it, _) in zip(found[::2], found[1::2], strict=True):
            distance = float((with_it.double() - without.double()).norm())
            assert distance <= sensitivity * (1 + 1e-5), name


@pytest.mark.soak
def test_noise_covers_a_process_that_claims_another_sensitivity(both):
    """The first says 1 and scales the noise to it; the other caps its example at 1000, and moves the sum by
    1."""
    for total in both["moved_by_a_stranger"]:
        assert float(total.norm()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.soak
def test_messages_are_as_long_whatever_is_in_the_samples(both):
    for found in both["sent_sizes"]:
        assert all(messages == found[0] for messages in found)
        assert sum(found[0]) == 2 * 6 * 8 + 2 * 7 * 8  # 6 statistics, 7 numbers


@pytest.mark.soak
def test_where_the_first_cannot_pay_nobody_draws(both):
    first, second = both["failing"]
    assert first[:2] == (3, "BudgetError: no more")
    assert second[:2] == (3, "ProcessError: the first process stopped; its own message says why.")


@pytest.mark.soak
def test_the_first_decides_event_ledger_and_weights(both):
    """Whatever the others were given; a ledger of theirs would count nothing."""
    (first, start), (second, other_start) = both["resolved"]
    assert first == second
    assert torch.equal(start, other_start)


@pytest.mark.soak
def test_all_stop_at_the_step_where_the_first_ends_the_run(both):
    """With an error, or without one: released figures are alike in all, so that another need not decide."""
    assert both["stopped"] == ((9, "TrainingStopped"), (9, "ProcessError"))
    assert both["ended"] == ([(4, 4), (8, 0)],) * 2


def test_alone_without_a_group(monkeypatch):
    assert processes_here().count == 1
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with raises_field(SettingError, "process_group"):
        processes_here()
