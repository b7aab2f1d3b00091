"""What fits a limit holds for analysts who choose by results; worked out apart from the product."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.integrate import quad
from scipy.signal import fftconvolve
from scipy.stats import norm

from equidp.accounting.limit import Limit, find_routes, unstated_entries
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import ReleaseEvent, StepEvent

DELTA = 1e-5


def gaussian_delta(loss: float, mu: float) -> float:
    """The hockey-stick divergence at e^loss of N(mu, 1) and N(0, 1)."""
    return float(norm.cdf(mu / 2 - loss / mu) - math.exp(loss) * norm.cdf(-mu / 2 - loss / mu))


@pytest.mark.soak
@pytest.mark.parametrize("limit", [1.0, 3.0, 8.0])
def test_the_base_of_each_route_is_that_of_its_formula(limit):
    """Stated: 4 Gaussian mechanisms of noise 10, of mu = .2 together, with a closed form."""
    beside, alone = find_routes(((StepEvent(1.0, 10.0), 4),), limit, DELTA, "pld")
    assert (beside.beside, alone.beside, beside.share + alone.share) == (True, False, pytest.approx(1.0))
    order = beside.order

    def integrand(x: float) -> float:
        loss = beside.base - math.log(1 - 1 / order) - x
        return gaussian_delta(loss, 0.2) * (order - 1) * math.exp(-(order - 1) * x)

    reached = quad(integrand, 0, 60, limit=500, epsabs=1e-14)[0]
    assert 0.97 * beside.share * DELTA < reached <= beside.share * DELTA
    order = alone.order
    by_hand = math.log(1 - 1 / order) - math.log(alone.share * DELTA * order) / (order - 1)
    assert alone.base == pytest.approx(by_hand)


@pytest.mark.soak
def test_what_was_stated_is_as_tight_as_a_plan_and_what_is_later_is_not():
    step, fit = StepEvent(0.1, 2.0), ReleaseEvent(1.0, 20.0, name="fit")
    stated = ((step, 50), (fit, 1))
    whole = epsilon(stated, DELTA)
    for limit in (whole, 3.0):
        known = Limit(limit, DELTA, "pld", stated)
        assert known.holds(stated)
        assert known.compute_epsilon(stated) == whole
        assert known.compute_epsilon(((step, 20),)) == epsilon(((step, 20),), DELTA)
    assert not Limit(whole, DELTA, "pld", stated).holds((*stated, (fit, 1)))
    more = (*stated, (step, 1))
    assert epsilon(more, DELTA) < Limit(3.0, DELTA, "pld", stated).compute_epsilon(more) <= 3.0
    assert Limit(3.0, DELTA, "rdp", stated).compute_epsilon(more) > epsilon(more, DELTA, "rdp") - 1e-12


def test_a_stated_step_stands_for_the_same_mechanism_and_for_no_other():
    """One that tells less would leave open which of two was used up, until a later result decides."""
    stated = ((StepEvent(0.1, 1.0), 5), (StepEvent(1.0, 4.0), 1))
    told = StepEvent(0.1, 1.0), ReleaseEvent(1.0, 4.0, name="fit")
    assert [unstated_entries(((each, 1),), stated) for each in told] == [(), ()]
    for other in (StepEvent(0.1, 1.1), StepEvent(0.05, 1.0), StepEvent(0.1, 0.9), StepEvent(0.1, 1.0, 9.0)):
        assert unstated_entries(((other, 5),), stated) == ((other, 5),)
    mixed = ((told[1], 1), (StepEvent(1.0, 4.0), 1), (told[0], 3))
    assert sum(steps for _, steps in unstated_entries(mixed, stated)) == 1


@pytest.mark.soak
@pytest.mark.parametrize(
    "stated",
    [
        ((StepEvent(1.0, 60.0), 1),),  # fits at orders above 64 alone
    ],
)
def test_one_delta_is_not_taken_twice_where_what_was_stated_fits_at_few_orders(stated):
    """What was stated is within the one route that has all of delta, or no other step fits."""
    for accountant in ("pld", "rdp", "rdp-classic"):
        limit = epsilon(stated, DELTA, accountant)
        (*_, route) = Limit(limit, DELTA, accountant, stated).routes
        if route.share < 1.0 or route.beside:
            continue
        within = route.epsilon(stated, stated) <= limit * (1 + 1e-12)
        assert within or not Limit(limit, DELTA, accountant, stated).holds(((StepEvent(1.0, 1e4), 1),))


@pytest.mark.soak
def test_steps_without_noise_never_fit_beside_what_was_stated():
    stated = ((StepEvent(0.1, 2.0), 5),)
    limit = Limit(3.0, DELTA, "pld", stated)
    assert limit.compute_epsilon((*stated, (StepEvent(0.1, 0.0), 1))) == math.inf
    assert Limit(math.inf, DELTA, "rdp", stated).holds((*stated, (StepEvent(0.1, 0.0), 1)))


class Analyst:
    """One who adds a run of kind A or of kind B as long as a limit holds, by the likelihood ratio so far.

    Exact, by dynamic programming over the loss so far; losses are rounded down, so that delta is a lower
    bound.
    """

    WIDTH, LOW, HIGH, EPSILON = 1e-2, -8.0, 14.0, 3.0

    def __init__(self, kinds: tuple[tuple[StepEvent, int], ...], limit: Limit) -> None:
        self.kinds, self.limit = kinds, limit
        self.grid = np.arange(round(self.LOW / self.WIDTH), round(self.HIGH / self.WIDTH) + 1) * self.WIDTH
        self.end = np.maximum(0, -np.expm1(self.EPSILON - self.grid))
        self.fitting: dict[tuple[int, ...], bool] = {}

    def delta(self) -> float:
        """The most that delta at the limit's epsilon can be made."""
        return max(self._of_direction(remove) for remove in (True, False))

    def _of_direction(self, remove: bool) -> float:
        laws = [self._law(*kind, remove) for kind in self.kinds]
        table: dict[tuple[int, int], np.ndarray] = {}

        def value(a: int, b: int) -> np.ndarray:
            if (a, b) not in table:
                following = [((a + 1, b), laws[0]), ((a, b + 1), laws[1])]
                options = [self._after(value(*there), law) for there, law in following if self._fits(*there)]
                table[a, b] = np.max([self.end, *options], axis=0)
            return table[a, b]

        return float(value(0, 0)[np.argmin(np.abs(self.grid))])

    def _fits(self, *counts: int) -> bool:
        if counts not in self.fitting:
            spent = tuple(
                (event, steps * n) for (event, steps), n in zip(self.kinds, counts, strict=True) if n
            )
            self.fitting[counts] = self.limit.holds(spent)
        return self.fitting[counts]

    def _law(self, event: StepEvent, steps: int, remove: bool):
        losses = pld.from_gaussian_mechanism(
            event.noise_multiplier,
            sampling_prob=event.sample_rate,
            value_discretization_interval=self.WIDTH,
            pessimistic_estimate=False,
        ).self_compose(steps)
        dense = (losses._pmf_remove if remove else losses._pmf_add).to_dense_pmf()
        return dense._lower_loss, np.asarray(dense._probs), dense._infinity_mass

    def _after(self, values: np.ndarray, law) -> np.ndarray:
        """E values(loss + L); beyond the grid, values are 0 below and 1 above."""
        low, probs, infinite = law
        reach = len(probs) + abs(low)
        padded = np.concatenate([np.zeros(reach), values, np.ones(reach)])
        full = fftconvolve(padded, probs[::-1], mode="full")
        start = reach + len(probs) - 1 + low
        return np.clip(full[start : start + len(values)], 0, 1) + infinite


@pytest.mark.soak
@pytest.mark.parametrize("stated", [0, 1, 2])
def test_no_analyst_exceeds_delta(stated):
    """Neither with nothing stated, nor with some whole-batch steps that are used when he likes."""
    kinds = ((StepEvent(1.0, 2.8), 1), (StepEvent(0.01, 0.6), 5))
    first = ((kinds[0][0], stated),) if stated else ()
    assert Analyst(kinds, Limit(3.0, DELTA, "pld", first)).delta() <= DELTA
    assert Analyst(kinds, Limit(3.0, DELTA, "rdp", first)).delta() <= DELTA


@pytest.mark.soak
def test_adding_losses_of_plans_that_follow_from_results_would_exceed_delta():
    """What the limit is for; a limit that takes all as stated lets it happen."""
    kinds = ((StepEvent(1.0, 2.8), 1), (StepEvent(0.01, 0.6), 5))
    assert Analyst(kinds, Limit(3.0, DELTA, "pld", None)).delta() > 1.4 * DELTA
