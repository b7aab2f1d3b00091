"""Each group has the epsilon of its own rate and bounds, the run the largest; equal groups are as before."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from scipy import stats

from equidp.accounting.calibration import calibrate_noise
from equidp.accounting.risk import Risk
from equidp.errors import SettingError
from equidp.kernel import step as step_module
from equidp.kernel.bounding import ROUNDING
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event, Label, Share
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.processes import Processes
from equidp.kernel.sampling import PoissonSampler
from equidp.kernel.step import PrivateStep
from equidp.ledger.ledger import Ledger
from equidp.policies import DPSGD, SGD
from equidp.runs.folder import number_columns
from support.errors import raises_field
from support.given_gradients import GivenGradients, run_over
from support.policies import Rogue

CROSSING = Event(0.2, 1.0, shares=(Share("a", 0.2, 0.5), Share("b", 0.05)))
"""Neither group's step is as costly as the other's in both rate and noise."""
NOTHING = Event(0.1, 1.0, shares=(Share("a", 0.1, 0.0),))
"""The one group has no share of anything."""


@pytest.mark.parametrize(
    ("share", "noise"),
    [
        (Share("a", 0.0), None),
        (Share("a", 0.1, 0.0, 0.0), None),
        (Share("a", 0.1, 0.0, 0.5), 8.0),
        (Share("a", 0.1, 0.5, 0.0), 4.0),
        (Share("a", 0.1), (2.0**-2 + 4.0**-2) ** -0.5),
    ],
)
def test_what_a_step_costs_a_group(share, noise):
    """Nothing where the group is never drawn; and a group that may add nothing is not drawn."""
    event = Event(0.3, 2.0, 4.0, shares=(share, Share("b", 0.3)))
    cost = event.cost(Label("", "a"))
    if noise is None:
        assert cost == (0.0, math.inf)
        assert event.drawn_rates == (0.0, 0.3)
        assert epsilon([(event, 9)], 1e-5, "rdp", Label("", "a")) == 0
    else:
        assert cost == (0.1, pytest.approx(noise))
        assert event.drawn_rates == (0.1, 0.3)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Share("", 0.1), "label"),
        (lambda: Share("a", 1.1), "rate"),
        (lambda: Share("a", math.nan), "rate"),
        (lambda: Share("a", 0.1, 0.01), "bound"),
        (lambda: Share("a", 0.1, 1.0, 1.5), "row"),
        (lambda: Share("a", 0.1, 1.0, math.nan), "row"),
        (lambda: Event(0.1, 1.0, math.nan), "statistics_noise"),
        (lambda: Event(0.1, 1.0, -1.0), "statistics_noise"),
        (lambda: Event(0.1, 1.0, shares=(Share("a", 0.1),) * 2), "shares"),
        (lambda: Event(0.2, 1.0, shares=(Share("a", 0.1),)), "rate"),
        (lambda: calibrate_noise(1.0, 1e-5, NOTHING, 1), "shares"),
    ],
)
def test_refused(make, field):
    with raises_field(SettingError, field):
        make()


def alone(event: Event, name: str) -> Event:
    """A step that costs everyone what this one costs an example of a label."""
    return Event(*event.cost(Label(event.column, name)))


NAMES = "0", "1"
SEX, DIABETES = torch.tensor([0, 0, 1, 1]), torch.tensor([1, 0, 1, 0])


LEDGER = Ledger()


def by_column(labels: torch.Tensor, *rates: float) -> Event:
    shares = tuple(Share(name, rate) for name, rate in zip(NAMES, rates, strict=True))
    return Event(max(rates), 1.0, shares=shares, column=LEDGER.column(NAMES, labels))


def test_labels_of_two_columns_are_not_the_same_by_having_one_name():
    """An example that is "1" by sex and "0" by diabetes is drawn at .02 in all 2000 steps: 6.15, not 4.34."""
    entries = [(by_column(SEX, 0.002, 0.02), 1000), (by_column(DIABETES, 0.02, 0.002), 1000)]
    most = epsilon([(Event(0.02, 1.0), 2000)], 1e-5, "rdp")
    assert round(most, 2) == 6.15
    assert epsilon(entries, 1e-5, "rdp") == most
    for (event, _), name in zip(entries, NAMES, strict=True):  # drawn at .002 in one of the two runs
        assert round(epsilon(entries, 1e-5, "rdp", Label(event.column, name)), 2) == 4.34


def test_labels_of_two_events_without_a_name_of_their_column_are_not_the_same():
    entries = [
        (Event(0.02, 1.0, shares=(Share("0", 0.002), Share("1", 0.02))), 1000),
        (Event(0.02, 1.0, shares=(Share("0", 0.02), Share("1", 0.002))), 1000),
    ]
    assert round(epsilon(entries, 1e-5, "rdp"), 2) == 6.15
    assert round(epsilon(entries[:1], 1e-5, "rdp"), 2) == round(
        epsilon([(Event(0.02, 1.0), 1000)], 1e-5, "rdp"), 2
    )


@pytest.mark.soak
def test_risk_is_the_largest_of_the_groups():
    risks = [Risk.of([(alone(CROSSING, name), 20)]) for name in "ab"]
    whole = Risk.of([(CROSSING, 20)])
    assert whole.advantage == max(each.advantage for each in risks)
    assert whole.true_positive_rates[0] == max(each.true_positive_rates[0] for each in risks)


@pytest.mark.soak
def test_records_name_columns_by_numbers():
    """A digest of private labels would tell two datasets apart."""
    runs = [(by_column(SEX, 0.1, 0.2), 3), (by_column(DIABETES, 0.1, 0.2), 3), (Event(0.1, 1.0), 3)]
    numbered = number_columns([*runs, runs[0]])
    assert [event.column for event, _ in numbered] == ["1", "2", "", "1"]
    assert all(Event.of_record(json.loads(json.dumps(asdict(event)))) == event for event, _ in numbered)
    assert epsilon(numbered, 1e-5, "rdp") == epsilon([*runs, runs[0]], 1e-5, "rdp")


def taken(sampler: PoissonSampler) -> np.ndarray:
    """Return True where an example is in a sample, [steps, n]."""
    found = np.zeros((len(sampler), sampler.num_examples), dtype=bool)
    for step, sample in enumerate(sampler):
        assert (np.diff(sample.numpy()) > 0).all()
        found[step, sample.numpy()] = True
    return found


@pytest.mark.parametrize("randomness", [SeededRandomness(5), SystemRandomness()], ids=["seeded", "system"])
@pytest.mark.parametrize("largest", [0.3, 1.0])
def test_each_group_is_drawn_at_its_rate(randomness, largest):
    """Chi-square of each example's number of samples, and of sizes' variance: a false alarm in 10^5 for each
    of the groups. A group of rate 0 is in none."""
    labels, rates, steps = torch.arange(90) % 3, (largest, 0.1, 0.0), 4000
    found = taken(PoissonSampler(90, largest, steps, randomness, labels=labels, rates=rates))
    assert not found[:, 2::3].any()
    assert largest < 1 or found[:, ::3].all()
    for group in range(2):
        own, rate = found[:, group::3], rates[group]
        if rate == 1:
            continue
        variance = rate * (1 - rate)
        statistic = ((own.sum(axis=0) - steps * rate) ** 2 / (steps * variance)).sum()
        assert 1e-5 < stats.chi2.sf(statistic, 30) < 1 - 1e-5
        sizes = own.sum(axis=1)
        assert abs(sizes.var() / (30 * variance) - 1) < 4.5 * np.sqrt((2 + 1 / (30 * variance)) / steps)


def test_shards_of_one_seed_are_parts_of_one_sample():
    labels = torch.arange(50) % 2
    given = {"labels": labels, "rates": (0.4, 0.1)}
    whole = list(PoissonSampler(50, 0.4, 70, SeededRandomness(1), **given))
    parts = [
        PoissonSampler(50, 0.4, 70, SeededRandomness(1), Processes(rank, 3), **given) for rank in range(3)
    ]
    for sample, *shards in zip(whole, *parts, strict=True):
        assert torch.equal(sample, torch.cat(shards))
        assert max(map(len, shards[:1])) <= 16


@pytest.mark.parametrize(
    "labels",
    [torch.tensor([0, 1, 2]), torch.tensor([0, -1, 1]), torch.tensor([0, 1]), torch.tensor([0.0, 1.0, 1.0])],
    ids=["a group too many", "negative", "too few", "no whole numbers"],
)
def test_labels_that_name_no_group_are_refused_before_a_sample(labels):
    with raises_field(SettingError, "labels"):
        PoissonSampler(3, 0.5, 1, SystemRandomness(), labels=labels, rates=(0.5, 0.1))


def make_step(policy, event, groups=2):
    parameter = torch.nn.Parameter(torch.zeros(4))
    return PrivateStep(
        GivenGradients(parameter),
        policy,
        [parameter],
        event=event,
        expected_batch_size=1.0,
        num_groups=groups,
        randomness=SeededRandomness(0),
    )


def gradient_of(step: PrivateStep, group: int, size: float = 1e6) -> float:
    """Length of the private sum of one example, whose gradient is long; noise is next to nothing."""
    (mean,) = step(torch.full((1, 4), size), torch.zeros(1), torch.tensor([group]))
    return float(mean.norm())


SHARED = Event(0.5, 1e-9, shares=(Share("a", 0.5), Share("b", 0.1, 0.25)))


def test_an_example_adds_at_most_its_group_s_share_of_the_bound():
    step = make_step(DPSGD(2.0), SHARED)
    assert gradient_of(step, 0) == pytest.approx(2.0, rel=1e-5)
    assert gradient_of(step, 1) == pytest.approx(0.5, rel=1e-5)
    assert gradient_of(step, 1, 0.05) == pytest.approx(0.1, rel=1e-5)  # short of its bound


def test_the_smaller_of_both_limits_holds_where_individual_clipping_limits_too():
    step = make_step(DPSGD(2.0), SHARED)
    step.limits = lambda indices, norms: torch.full_like(norms, 0.4)
    assert gradient_of(step, 0) == pytest.approx(0.8, rel=1e-5)
    assert gradient_of(step, 1) == pytest.approx(0.5, rel=1e-5)


def test_rows_and_weights_of_a_policy_that_ignores_bounds_are_within_the_group_s(monkeypatch):
    """Each moves the sum of statistics by at most r_k, whatever the policy returns."""
    rows, sum_of = [], step_module.private_sum

    def seen(given, **settings):
        rows.append(given)
        return sum_of(given, **settings)

    monkeypatch.setattr(step_module, "private_sum", seen)
    shares = (Share("a", 0.5, 0.5, 0.125), Share("b", 0.1, 1.0, 0.0))
    step = make_step(Rogue(), Event(0.5, 1e-9, 1e-9, shares=shares))
    step(torch.ones(3, 4), torch.zeros(3), torch.tensor([0, 1, 0]))
    norms = torch.linalg.vector_norm(rows[0], dim=1)
    assert norms.tolist() == pytest.approx([0.125, 0.0, 0.125])
    assert (norms <= torch.tensor([0.125, 0.0, 0.125]) * (1 + ROUNDING)).all()


def test_shares_that_the_data_or_the_method_has_not_are_refused():
    with raises_field(SettingError, "shares"):
        make_step(DPSGD(), SHARED, groups=3)
    with raises_field(SettingError, "bound_shares"):
        make_step(SGD(), Event(0.5, 0.0, shares=SHARED.shares))


def test_a_run_draws_by_the_labels_it_is_given():
    """Sizes of both groups within 5 standard errors; seed fixed."""
    labels, seen = (torch.arange(20) >= 10).long(), []
    run = run_over(make_step(DPSGD(), SHARED), torch.ones(20, 4), labels, steps=40, seen=seen)
    while run.step():
        pass
    assert run.ledger.entries() == ((SHARED, 40),)
    drawn = sum(torch.bincount(batch.groups, minlength=2) for batch in seen)
    assert abs(drawn[0] - 200) < 5 * 100**0.5
    assert abs(drawn[1] - 40) < 5 * 36**0.5


def test_an_example_is_bounded_as_of_the_group_that_it_was_drawn_by():
    """Also where labels of the data change in between: the run has its own."""
    labels, seen = torch.arange(20) % 2, []
    step = make_step(DPSGD(), SHARED)
    run = run_over(step, 1e6 * torch.eye(20)[:, :4], labels, steps=2, seen=seen)
    labels.copy_(1 - labels)
    groups = []
    step.limits = lambda indices, norms: torch.ones_like(norms)
    example_weights = step_module.example_weights
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            step_module, "example_weights", lambda *given: groups.append(given[3]) or example_weights(*given)
        )
        while run.step():
            pass
    assert torch.equal(torch.cat(groups), torch.cat([batch.indices % 2 for batch in seen]))


@pytest.mark.parametrize("labels", [None, torch.arange(20) % 3], ids=["none", "a group too many"])
def test_a_run_without_a_group_of_each_example_is_refused(labels):
    ledger = Ledger()
    with raises_field(SettingError, "labels"):
        run_over(make_step(DPSGD(), SHARED), torch.ones(20, 4), labels, steps=40, ledger=ledger)
    assert sum(count for _, count in ledger.entries()) == 0
