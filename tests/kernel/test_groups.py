"""Each group has the epsilon of its own rate and bounds, the run the largest; equal groups are as before."""

from __future__ import annotations

import math
from itertools import product

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from equidp.accounting import limit as limit_module
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.calibration import calibrate_noise, calibrate_step
from equidp.accounting.limit import Limit
from equidp.accounting.meter import EpsilonMeter
from equidp.accounting.risk import Risk
from equidp.errors import SettingError
from equidp.kernel import epsilon as accounting, step as step_module
from equidp.kernel.bounding import ROUNDING
from equidp.kernel.epsilon import epsilon, epsilon_of_group, project_groups
from equidp.kernel.ledger import (
    GroupedStepEvent,
    GroupShare,
    MemoryLedger,
    ReleaseEvent,
    StepEvent,
    make_step_event,
)
from equidp.kernel.loop import PrivateLoop
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.noisy_sum import split_sums
from equidp.kernel.processes import Alone
from equidp.kernel.sampling import PoissonSampler
from equidp.kernel.step import PrivateStep
from equidp.ledger.file import LedgerFile
from equidp.ledger.format import event_of, plain
from equidp.policies import DPSGD, SGD
from support.errors import raises_field
from support.given_gradients import GivenGradients, loop_over
from support.policies import Rogue

CROSSING = GroupedStepEvent(0.2, 1.0, by_group=(GroupShare("a", 0.2, 0.5), GroupShare("b", 0.05)))
"""Neither group's step is as costly as the other's in both rate and noise."""
NOTHING = GroupedStepEvent(0.1, 1.0, by_group=(GroupShare("a", 0.1, 0.0),))
"""The one group has no share of anything."""


def random_setting(seed: int):
    """Steps by group, statistics or none, a release or none, as of a run; and delta."""
    draw = np.random.default_rng(seed)
    shares = tuple(
        GroupShare(
            f"group {k}",
            float(draw.choice([0.0, draw.uniform(0.01, 0.2)], p=[0.15, 0.85])),
            float(draw.choice([0.0, 1.0, draw.uniform(1 / 16, 1)], p=[0.15, 0.25, 0.6])),
            float(draw.choice([0.0, 1.0, draw.uniform(1 / 16, 1)], p=[0.15, 0.25, 0.6])),
        )
        for k in range(draw.integers(1, 4))
    )
    shares = (*shares, GroupShare("usual", 0.1))
    sigma = float(draw.uniform(0.7, 3.0))
    statistics = float(sigma * draw.uniform(1, 8)) if draw.random() < 0.5 else None
    event = GroupedStepEvent(max(each.sample_rate for each in shares), sigma, statistics, shares)
    entries = [(event, int(draw.integers(1, 400)))]
    if draw.random() < 0.5:
        entries.append(
            (ReleaseEvent(1.0, float(draw.uniform(3, 30)), name="counts"), int(draw.integers(1, 3)))
        )
    return entries, float(10.0 ** -draw.uniform(4, 7))


def by_dp_accounting(entries, name: str, delta: float, accountant) -> float:
    """Epsilon of a group, from dp_accounting's events and the formula of one joint Gaussian."""
    event, steps = entries[0]
    share = next(each for each in event.by_group if each.name == name)
    precision = (share.bound_share / event.noise_multiplier) ** 2
    if event.statistics_noise is not None:
        precision += (share.row_share / event.statistics_noise) ** 2
    spent = [(1.0, each.noise_multiplier, count) for each, count in entries[1:]]
    if precision and share.sample_rate:
        spent.append((share.sample_rate, precision**-0.5, steps))
    for rate, noise, count in spent:
        one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
        accountant.compose(one, count)
    return accountant.get_epsilon(delta) if spent else 0.0


def check_setting(seed: int, name: str, make_accountant) -> None:
    entries, delta = random_setting(seed)
    found = {}
    for share in entries[0][0].by_group:
        found[share.name] = epsilon_of_group(entries, share.name, delta, name)
        expected = by_dp_accounting(entries, share.name, delta, make_accountant())
        assert found[share.name] == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert epsilon(entries, delta, name) == pytest.approx(max(found.values()), rel=1e-6)


@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(k, marks=pytest.mark.soak) for k in range(2, 40))]
)
def test_each_group_has_the_epsilon_that_dp_accounting_alone_gives_it(seed):
    """By Renyi divergences, and the run has the largest."""
    check_setting(seed, "rdp", RdpAccountant)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 3, 5, 9, 10, 11, 13, 17, 23, 27, 28, 34])
def test_each_group_has_the_epsilon_by_privacy_losses_too(seed):
    """With statistics and releases and without, and groups that are never drawn or add nothing to a sum."""
    check_setting(seed, "pld", lambda: PLDAccountant(value_discretization_interval=accounting.FINE))


@pytest.mark.parametrize(
    ("share", "noise"),
    [
        (GroupShare("a", 0.0), None),
        (GroupShare("a", 0.1, 0.0, 0.0), None),
        (GroupShare("a", 0.1, 0.0, 0.5), 8.0),
        (GroupShare("a", 0.1, 0.5, 0.0), 4.0),
        (GroupShare("a", 0.1), (2.0**-2 + 4.0**-2) ** -0.5),
    ],
)
def test_what_a_step_costs_a_group(share, noise):
    """Nothing where the group is never drawn; and a group that may add nothing is not drawn."""
    event = GroupedStepEvent(0.3, 2.0, 4.0, (share, GroupShare("b", 0.3)))
    cost = event.of_group("a")
    if noise is None:
        assert cost is None
        assert event.drawn_rates == (0.0, 0.3)
        assert epsilon_of_group([(event, 9)], "a", 1e-5, "rdp") == 0
    else:
        kinds = accounting.count_kinds([(cost, 1)])
        assert list(kinds) == [(0.1, pytest.approx(noise))]
        assert event.drawn_rates == (0.1, 0.3)


def test_a_step_without_noise_has_no_privacy_for_a_group_that_is_drawn():
    event = GroupedStepEvent(0.3, 0.0, by_group=(GroupShare("a", 0.0), GroupShare("b", 0.3, 0.5)))
    assert epsilon([(event, 1)], 1e-5) == math.inf
    assert epsilon_of_group([(event, 1)], "a", 1e-5) == 0


def test_equal_groups_without_smaller_bounds_are_a_plain_step():
    shares = tuple(GroupShare(name, 0.25) for name in "abc")
    assert make_step_event(0.1, 1.0, 2.0, shares) == StepEvent(0.25, 1.0, 2.0)
    assert type(make_step_event(0.1, 1.0, None, shares)) is StepEvent
    lower = (*shares[:2], GroupShare("c", 0.25, 0.5))
    assert isinstance(make_step_event(0.1, 1.0, None, lower), GroupedStepEvent)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: GroupShare("", 0.1), "name"),
        (lambda: GroupShare("a", 1.1), "sample_rate"),
        (lambda: GroupShare("a", math.nan), "sample_rate"),
        (lambda: GroupShare("a", 0.1, 0.01), "bound_share"),
        (lambda: GroupShare("a", 0.1, 1.0, 1.5), "row_share"),
        (lambda: GroupedStepEvent(0.1, 1.0), "by_group"),
        (lambda: GroupedStepEvent(0.1, 1.0, by_group=(GroupShare("a", 0.1),) * 2), "by_group"),
        (lambda: GroupedStepEvent(0.2, 1.0, by_group=(GroupShare("a", 0.1),)), "sample_rate"),
        (lambda: CROSSING.of_group("c"), "group"),
        (lambda: calibrate_step(1.0, 1e-5, NOTHING, 1), "by_group"),
    ],
)
def test_refused(make, field):
    with raises_field(SettingError, field):
        make()


def costs_of_pairs(*events: GroupedStepEvent) -> list[tuple[StepEvent | None, ...]]:
    """Return the costs of two steps by group for each pair of groups: (a, a), (a, b), (b, a), (b, b)."""
    return list(product(*([event.of_group(name) for name in "ab"] for event in events)))


@pytest.mark.soak
def test_groupings_of_two_runs_are_combined():
    """An example in one group of one run may be in any group of the other, also under the same name; a
    release counts for every example."""
    other = GroupedStepEvent(0.3, 2.0, by_group=(GroupShare("b", 0.3, 0.5), GroupShare("a", 0.1)))
    release = StepEvent(1.0, 9.0)
    entries = [(CROSSING, 20), (other, 30), (release, 1), (CROSSING, 5)]
    combined = [
        epsilon([(first, 20), (second, 30), (release, 1), (first, 5)], 1e-5, "rdp")
        for first, second in costs_of_pairs(CROSSING, other)
    ]
    assert epsilon(entries, 1e-5, "rdp") == max(combined)
    assert epsilon_of_group(entries, "a", 1e-5, "rdp") == combined[0]
    assert epsilon_of_group(entries, "b", 1e-5, "rdp") == combined[3]


def test_a_group_that_costs_no_more_than_another_needs_no_account_of_its_own():
    shares = tuple(GroupShare(f"{k}", 0.2 / k, 1 / k) for k in range(1, 9))
    assert project_groups([(GroupedStepEvent(0.2, 1.0, by_group=shares), 3)]) == (
        ((StepEvent(0.2, 1.0), 3),),
    )


def test_more_combinations_than_are_listed_count_at_the_largest_rate_and_bounds():
    events = [
        GroupedStepEvent(0.2, 1.0 + k, by_group=CROSSING.by_group) for k in range(7)
    ]  # 2^7 combinations
    few, many = ([(event, 3) for event in events[:number]] for number in (6, 7))
    assert len(project_groups(few)) == 64
    assert project_groups(many) == tuple((*each, (StepEvent(0.2, 7.0), 3)) for each in project_groups(few))


@pytest.mark.soak
@pytest.mark.parametrize("kinds", [1, 3], ids=["few", "more than are accounted for one by one"])
def test_later_kinds_of_steps_leave_the_routes_of_what_was_stated(kinds, monkeypatch):
    """Orders and shares of delta follow for each group from what was stated, before there are results: the
    proof allows no others later."""
    given, find_routes = [], limit_module.find_routes

    def seen(stated, *settings):
        given.append(stated)
        return find_routes(stated, *settings)

    monkeypatch.setattr(limit_module, "find_routes", seen)
    monkeypatch.setattr(accounting, "MOST_COMBINATIONS", 4)
    later = [(GroupedStepEvent(0.2, 3.0 + k, by_group=CROSSING.by_group), 1) for k in range(kinds)]
    Limit(9.0, 1e-5, "rdp", ((CROSSING, 20),)).compute_epsilon([*later, (CROSSING, 20)])
    assert {*given} == {((CROSSING.of_group(name), 20),) for name in "ab"}


@pytest.mark.soak
@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.soak)])
def test_the_meter_is_an_upper_bound_and_exact_at_the_end(accountant):
    meter = EpsilonMeter(CROSSING, 30, 1e-5, accountant)
    exact = [epsilon([(CROSSING, steps)], 1e-5, accountant) for steps in (1, 10, 30)]
    assert meter(0) == 0
    assert exact[0] <= meter(1) < 1.05 * exact[0]
    assert exact[1] <= meter(10) < 1.2 * exact[1]
    assert meter(30) == exact[2]


@pytest.mark.soak
def test_risk_is_the_largest_of_the_groups():
    risks = [Risk.of([(CROSSING.of_group(name), 20)]) for name in "ab"]
    whole = Risk.of([(CROSSING, 20)])
    assert whole.advantage == max(each.advantage for each in risks)
    assert whole.true_positive_rates[0] == max(each.true_positive_rates[0] for each in risks)


@pytest.mark.soak
def test_calibrated_noise_keeps_every_group_to_the_target():
    """By the least noise: the group that costs most is at it."""
    unit = GroupedStepEvent(0.2, 1.0, 3.0, CROSSING.by_group)
    noise = calibrate_step(2.0, 1e-5, unit, 50, "rdp")
    event = GroupedStepEvent(0.2, noise, 3.0 * noise, CROSSING.by_group)
    assert 2.0 * (1 - 5e-4) < epsilon([(event, 50)], 1e-5, "rdp") <= 2.0
    alone = calibrate_step(2.0, 1e-5, StepEvent(0.2, 1.0, 3.0), 50, "rdp")
    assert alone == calibrate_noise(2.0, 1e-5, 0.2, 50, 3.0, "rdp")


@pytest.mark.soak
@pytest.mark.parametrize("accountant", ["rdp", pytest.param("pld", marks=pytest.mark.soak)])
def test_a_budget_holds_for_each_combination_of_groups(accountant):
    """What follows from results is counted for an example as its groups say: the limit is the largest over
    pairs of groups of a limit for plain steps."""
    later = GroupedStepEvent(0.3, 2.0, by_group=(GroupShare("a", 0.3, 0.5), GroupShare("b", 0.1)))
    stated, spent = ((CROSSING, 20),), ((CROSSING, 20), (later, 10))
    found = Limit(5.0, 1e-5, accountant, stated).compute_epsilon(spent)
    plain_limits = [
        Limit(5.0, 1e-5, accountant, ((first, 20),)).compute_epsilon(((first, 20), (second, 10)))
        for first, second in costs_of_pairs(CROSSING, later)
    ]
    assert found == max(plain_limits)
    assert found > Limit(5.0, 1e-5, accountant, stated).compute_epsilon(stated)


def test_a_plain_step_is_not_what_was_stated_by_group():
    """A step of the largest rate and the whole bound costs a group of smaller shares more."""
    limit = Limit(9.0, 1e-5, "rdp", ((CROSSING, 20),))
    assert limit.compute_epsilon([(StepEvent(0.2, 1.0), 20)]) > limit.compute_epsilon([(CROSSING, 20)])


@pytest.mark.soak
def test_a_budget_goes_on_from_its_file(tmp_path):
    path = tmp_path / "budget"
    with PrivacyBudget(path, epsilon=3.0, delta=1e-5, accountant="rdp") as budget:
        ledger = budget.ledger(MemoryLedger())
        for _ in range(3):
            ledger.spend(CROSSING)
        spent = budget.spent()
    with PrivacyBudget(path) as budget:
        assert budget.spent() == spent
        assert budget.entries == ((CROSSING, 3),)
        assert not budget.fits(CROSSING, 10_000)


def test_a_ledger_on_disk_counts_steps_by_group(tmp_path):
    with LedgerFile(tmp_path / "ledger") as ledger:
        ledger.expect(CROSSING, 5)
        for _ in range(5):
            ledger.spend(CROSSING)
    with LedgerFile(tmp_path / "ledger") as ledger:
        assert ledger.entries == ((CROSSING, 5),)
        assert ledger.count_of(CROSSING) == 5
        assert ledger.count_of(StepEvent(0.2, 1.0)) == 0
    assert b'"grouped":' in (tmp_path / "ledger").read_bytes()


def test_lines_of_plain_steps_are_as_before():
    assert plain(StepEvent(0.25, 1.0)) == {
        "spend": {"sample_rate": 0.25, "noise_multiplier": 1.0, "statistics_noise": None}
    }
    assert event_of(plain(CROSSING)) == CROSSING


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


def test_groups_are_drawn_independently():
    """No two examples, of one group or two, share more or fewer samples than by chance: 435 correlations
    within 5.2 standard errors, a false alarm in 10^4."""
    labels = torch.arange(30) % 2
    found = taken(PoissonSampler(30, 0.4, 8000, SeededRandomness(2), labels=labels, rates=(0.4, 0.1)))
    rates = np.where(labels.numpy(), 0.1, 0.4)
    centred = (found - rates) / np.sqrt(rates * (1 - rates))
    correlations = (centred.T @ centred / len(found))[np.triu_indices(30, 1)]
    assert abs(correlations).max() < 5.2 / np.sqrt(len(found))


def test_equal_rates_draw_the_same_samples_and_no_further_numbers():
    labels, one_seed, same_seed = torch.arange(50) % 2, SeededRandomness(1), SeededRandomness(1)
    ungrouped = PoissonSampler(50, 0.2, 70, one_seed)
    grouped = PoissonSampler(50, 0.2, 70, same_seed, labels=labels, rates=(0.2, 0.2))
    assert np.array_equal(taken(ungrouped), taken(grouped))
    assert one_seed.words(1) == same_seed.words(1)


class OneOf(Alone):
    """One of several processes, as a sampler sees it."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count  # type: ignore[misc]


def test_shards_of_one_seed_are_parts_of_one_sample():
    labels = torch.arange(50) % 2
    given = {"labels": labels, "rates": (0.4, 0.1)}
    whole = list(PoissonSampler(50, 0.4, 70, SeededRandomness(1), **given))
    parts = [PoissonSampler(50, 0.4, 70, SeededRandomness(1), OneOf(rank, 3), **given) for rank in range(3)]
    for sample, *shards in zip(whole, *parts, strict=True):
        assert torch.equal(sample, torch.cat(shards))
        assert max(map(len, shards[:1])) <= 16


def test_shards_of_system_draws_keep_the_rates():
    """Two shards of a third process' own draws; 5 standard errors of each group's number, a false alarm in
    10^6."""
    labels, rates = torch.arange(60) % 2, (0.5, 0.1)
    for rank in range(2):
        sampler = PoissonSampler(
            60, 0.5, 2000, SystemRandomness(), OneOf(rank, 2), labels=labels, rates=rates
        )
        own = taken(sampler)[:, 30 * rank : 30 * rank + 30]
        for group, rate in enumerate(rates):
            drawn, expected = own[:, group::2].sum(), 15 * 2000 * rate
            assert abs(drawn - expected) < 5 * np.sqrt(expected * (1 - rate))


@pytest.mark.parametrize(
    "labels",
    [torch.tensor([0, 1, 2]), torch.tensor([0, -1, 1]), torch.tensor([0, 1]), torch.tensor([0.0, 1.0, 1.0])],
    ids=["a group too many", "negative", "too few", "no whole numbers"],
)
def test_labels_that_name_no_group_are_refused_before_a_sample(labels):
    with raises_field(SettingError, "labels"):
        PoissonSampler(3, 0.5, 1, SystemRandomness(), labels=labels, rates=(0.5, 0.1))


def test_a_rate_above_the_sampler_s_is_refused():
    with raises_field(SettingError, "rate"):
        PoissonSampler(3, 0.5, 1, SystemRandomness(), labels=torch.zeros(3).long(), rates=(0.6,))


def make_step(policy, event, groups=2, ledger=None):
    parameter = torch.nn.Parameter(torch.zeros(4))
    return PrivateStep(
        GivenGradients(parameter),
        policy,
        [parameter],
        event=event,
        expected_batch_size=1.0,
        num_groups=groups,
        ledger=MemoryLedger() if ledger is None else ledger,
        randomness=SeededRandomness(0),
    )


def gradient_of(step: PrivateStep, group: int, size: float = 1e6) -> float:
    """Length of the private sum of one example, whose gradient is long; noise is next to nothing."""
    step(torch.full((1, 4), size), torch.zeros(1), torch.tensor([group]))
    return float(step.parameters[0].grad.norm())


SHARED = GroupedStepEvent(0.5, 1e-9, by_group=(GroupShare("a", 0.5), GroupShare("b", 0.1, 0.25)))


def test_an_example_adds_at_most_its_group_s_share_of_the_bound():
    step = make_step(DPSGD(2.0), SHARED)
    assert gradient_of(step, 0) == pytest.approx(2.0, rel=1e-5)
    assert gradient_of(step, 1) == pytest.approx(0.5, rel=1e-5)
    assert gradient_of(step, 1, 0.05) == pytest.approx(0.1, rel=1e-5)  # short of its bound


def test_the_smaller_of_both_limits_holds_where_individual_clipping_limits_too():
    step = make_step(DPSGD(2.0), SHARED)
    step.share_limits = lambda indices, norms: torch.full_like(norms, 0.4)
    assert gradient_of(step, 0) == pytest.approx(0.8, rel=1e-5)
    assert gradient_of(step, 1) == pytest.approx(0.5, rel=1e-5)


def test_rows_and_weights_of_a_policy_that_ignores_bounds_are_within_the_group_s(monkeypatch):
    """Each moves the sum of statistics by at most r_k, whatever the policy returns."""
    rows, sum_of = [], step_module.private_sum

    def seen(given, **settings):
        rows.append(given)
        return sum_of(given, **settings)

    monkeypatch.setattr(step_module, "private_sum", seen)
    shares = (GroupShare("a", 0.5, 0.5, 0.125), GroupShare("b", 0.1, 1.0, 0.0))
    step = make_step(Rogue(), GroupedStepEvent(0.5, 1e-9, 1e-9, shares))
    step(torch.ones(3, 4), torch.zeros(3), torch.tensor([0, 1, 0]))
    norms = torch.linalg.vector_norm(rows[0], dim=1)
    assert norms.tolist() == pytest.approx([0.125, 0.0, 0.125])
    assert (norms <= torch.tensor([0.125, 0.0, 0.125]) * (1 + ROUNDING)).all()


@pytest.mark.parametrize("groups", [[0, 2], [-1, 1]], ids=["a group too many", "negative"])
def test_a_step_refuses_labels_of_no_group_before_it_is_charged(groups):
    ledger = MemoryLedger()
    step = make_step(DPSGD(), SHARED, ledger=ledger)
    with raises_field(SettingError, "groups"):
        step(torch.ones(2, 4), torch.zeros(2), torch.tensor(groups))
    assert ledger.steps == 0


def test_a_step_is_for_as_many_groups_as_the_data_has():
    with raises_field(SettingError, "by_group"):
        make_step(DPSGD(), SHARED, groups=3)


def test_a_method_without_bounds_has_none_to_share():
    quiet = GroupedStepEvent(0.5, 0.0, by_group=SHARED.by_group)
    with raises_field(SettingError, "bound_shares"):
        make_step(SGD(), quiet)
    rates = GroupedStepEvent(0.5, 0.0, by_group=(GroupShare("a", 0.5), GroupShare("b", 0.1)))
    assert gradient_of(make_step(SGD(), rates), 1, 3.0) == 6.0


def make_loop(labels: torch.Tensor | None, event=SHARED, ledger=None) -> PrivateLoop:
    return loop_over(make_step(DPSGD(), event, ledger=ledger), torch.ones(20, 4), labels, steps=40)


def test_the_loop_draws_by_the_labels_it_is_given():
    """Sizes of both groups within 5 standard errors; seed fixed."""
    labels = (torch.arange(20) >= 10).long()
    loop, drawn = make_loop(labels), torch.zeros(2)
    for batch in loop.batches():
        drawn += torch.bincount(batch.groups, minlength=2)
        loop.take(batch)
    assert loop.private_step.ledger.entries == ((SHARED, 40),)
    assert abs(drawn[0] - 200) < 5 * 100**0.5
    assert abs(drawn[1] - 40) < 5 * 36**0.5


def test_a_batch_with_other_groups_than_were_drawn_is_refused():
    """An example would be bounded as of one group, and drawn as of another."""
    loop = make_loop(torch.arange(20) % 2)
    batch = next(batch for batch in loop.batches() if len(batch.indices))
    with raises_field(SettingError, "batch"):
        loop.take(batch._replace(groups=1 - batch.groups))


def test_an_example_is_bounded_as_of_the_group_that_it_was_drawn_by():
    """Also where labels of the data change in between: samples are drawn some steps ahead."""
    labels = torch.arange(20) % 2
    loop = make_loop(labels)
    batches = loop.batches()
    loop.take(next(batches))
    labels.copy_(1 - labels)
    with raises_field(SettingError, "groups"):
        for batch in batches:
            loop.take(batch)


@pytest.mark.parametrize("kind", [torch.int8, torch.bool], ids=str)
def test_groups_of_another_type_are_those_that_were_drawn(kind, monkeypatch):
    """A type that does not hold each number, as int8 takes 256 for 0, gives nobody another group's share; one
    of true and false does not choose among groups in place of examples."""
    seen = []
    labels = torch.full((20,), 1 if kind is torch.bool else 256)
    shares = tuple(GroupShare(f"{k}", 0.5, 0.25 if k == labels[0] else 1.0) for k in range(300))
    step = make_step(DPSGD(), GroupedStepEvent(0.5, 1e-9, by_group=shares), groups=300)
    monkeypatch.setattr(step, "_release", lambda blocks, totals, _: seen.append(split_sums(blocks, totals)))
    loop = loop_over(step, torch.ones(20, 4), labels, steps=1)
    batch = next(loop.batches())
    changed = batch._replace(groups=batch.groups.to(kind))
    if kind is torch.int8:
        with raises_field(SettingError, "groups"):
            loop.take(changed)
    else:
        loop.take(changed)
        assert float(seen[0][0].norm()) == pytest.approx(0.25 * len(batch.indices), rel=1e-5)


def test_a_step_takes_labels_as_whole_numbers_alone():
    ledger = MemoryLedger()
    step = make_step(DPSGD(), SHARED, ledger=ledger)
    with raises_field(SettingError, "groups"):
        step(torch.ones(2, 4), torch.zeros(2), torch.tensor([True, False]))
    assert ledger.steps == 0


@pytest.mark.parametrize("labels", [None, torch.arange(20) % 3], ids=["none", "a group too many"])
def test_a_loop_without_a_group_of_each_example_is_refused(labels):
    ledger = MemoryLedger()
    with raises_field(SettingError, "labels"):
        make_loop(labels, ledger=ledger)
    assert ledger.steps == 0
