"""The privacy that each example and each group got, and noisy releases of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equidp._extras import require_extra
from equidp.accounting.planned import INDIVIDUAL, release_event
from equidp.accounting.risk import EPSILONS, Risk
from equidp.data.dataset import ALL
from equidp.display import shown_epsilon
from equidp.errors import DataError, SettingError
from equidp.kernel.epsilon import Entries
from equidp.kernel.ledger import Ledger, Payment
from equidp.kernel.noise import Randomness
from equidp.kernel.noisy_sum import private_sum
from equidp.tables.release import private_quantile

with require_extra("tables"):
    import pandas as pd


@dataclass(frozen=True)
class IndividualReport:
    """Epsilon of each training example. Private: publish only what a `release_` method returns.

    An example's epsilon bounds what this run's releases reveal of it, given the trajectory that the run took.
    The worst case over all trajectories is the run's epsilon. Every epsilon includes in full all other
    entries of the ledger at the time of the report, such as private preprocessing, and no later release.

    Attributes:
        sensitive_epsilons: [n].
        group_epsilons: [K], largest epsilon that a member of each group can have, by the bounds that the
            policy released: not private. Below `largest` only where a policy has a bound for each group, such
            as DPSGD-F, or where the run has rates or bounds by group.
        linear_group_epsilons: [K], epsilons as the papers read these bounds, without a guarantee: the epsilon
            of the steps times the mean share of the group's bound, and what other entries of the ledger add.
        groups: [n], indices into `group_names`.
        group_names: one per group.
        largest: epsilon of an example that used all of the sensitivity in every step, and with all else in
            the ledger; no example has a larger epsilon.
        delta: delta of all epsilons.
        guaranteed: True if epsilons are upper bounds, from norms taken in every step or from individual
            clipping; False if they are estimates.
        ledger: ledger that releases are charged to.
        randomness: randomness of the noise of releases.
        group_profiles: delta of a member of each group at `equidp.accounting.risk.EPSILONS`, [K, 401], by the
            bounds that the policy released: not private.
        spent: (event, number of steps) pairs that the profiles cover; their risk limits that of every group.

    Example:
        >>> from equidp.kernel.ledger import MemoryLedger
        >>> from equidp.kernel.noise import SeededRandomness
        >>> private, bounds, groups = np.array([0.5, 1.5]), np.array([2.0, 2.0]), np.array([0, 1])
        >>> given = {"guaranteed": True, "ledger": MemoryLedger(), "randomness": SeededRandomness(0)}
        >>> report = IndividualReport(private, bounds, bounds, groups, ("a", "b"), 2.0, 1e-5, **given)
        >>> report.sensitive_worst_to_best()
        3.0
    """

    sensitive_epsilons: npt.NDArray[np.float64]
    group_epsilons: npt.NDArray[np.float64]
    linear_group_epsilons: npt.NDArray[np.float64]
    groups: npt.NDArray[np.int64]
    group_names: tuple[str, ...]
    largest: float
    delta: float
    guaranteed: bool
    ledger: Ledger
    randomness: Randomness
    group_profiles: npt.NDArray[np.float64] | None = None
    spent: Entries = ()

    def group_risks(self) -> dict[str, Risk]:
        """Return the most that any membership attack achieves on a member of each group, in this training.

        It follows from the bounds that the policy released, never from examples: it costs nothing, and only a
        policy with a bound for each group gives one a lower risk than the run's. It covers the steps so far
        and what else the ledger held at the time of the report, such as a release.

        Raises:
            SettingError: a report without profiles.
        """
        if self.group_profiles is None:
            raise SettingError(
                "this report has no profiles; take one from IndividualAccountant.report.", field="profiles"
            )
        whole = Risk.of(self.spent)
        return {
            name: Risk.of_profile(EPSILONS, deltas).at_most(whole)
            for name, deltas in zip(self.group_names, self.group_profiles, strict=True)
        }

    def for_owner(self, index: int) -> str:
        """Return a text for the person whose example this is, and for no one else, with epsilons rounded
        up."""
        if not 0 <= index < len(self.sensitive_epsilons):
            raise SettingError(f"index={index}; expected one of {len(self.sensitive_epsilons)} examples.")
        quality = "at most" if self.guaranteed else "an estimated"
        return (
            f"Your record had {quality} epsilon {shown_epsilon(self.sensitive_epsilons[index]):g} at delta "
            f"{self.delta:g} in this training run and all else that its ledger held, counted along the "
            "models that it passed through. Whatever had come out of it, everyone is guaranteed "
            f"{shown_epsilon(self.largest):g}."
        )

    def sensitive_by_group(self) -> pd.DataFrame:
        """Return count, mean, quantiles and largest of the epsilons of each group and of all, a row each.

        `over_lowest` is the mean over the lowest mean of a group. All but the count of a group without
        examples is NaN.
        """
        rows = []
        for name, chosen in [
            *((name, self.groups == group) for group, name in enumerate(self.group_names)),
            (ALL, np.ones(len(self.groups), dtype=bool)),
        ]:
            values = self.sensitive_epsilons[chosen]
            known = values if len(values) else np.array([np.nan])
            quantiles = np.quantile(known, [0.05, 0.5, 0.95])
            rows.append((name, len(values), known.mean(), *quantiles, known.max()))
        table = pd.DataFrame(rows, columns=["group", "count", "mean", "q05", "median", "q95", "largest"])
        lowest = table.loc[table["group"] != ALL, "mean"].min()
        return table.assign(over_lowest=table["mean"] / lowest)

    def sensitive_worst_to_best(self) -> float:
        """Return the highest mean epsilon of a group over the lowest."""
        means = self.sensitive_by_group().set_index("group")["mean"].drop(ALL)
        return float(means.max() / means.min())

    def sensitive_loss_correlation(self, losses: Tensor) -> float:
        """Return the correlation of epsilon with log loss (Yu et al., Figure 5); NaN where one is constant.

        Args:
            losses: of the training examples, [n]. One of less than 1.2e-7 counts as that, the least that
                single precision tells from 0.
        """
        if losses.shape != self.sensitive_epsilons.shape:
            raise DataError(
                f"losses have shape {tuple(losses.shape)}; expected one per training example, "
                f"{self.sensitive_epsilons.shape}.",
                field="losses",
            )
        logs = losses.double().clamp_min(torch.finfo(torch.float32).eps).log().cpu().numpy()
        if np.ptp(logs) == 0 or np.ptp(self.sensitive_epsilons) == 0:
            return math.nan
        return float(np.corrcoef(self.sensitive_epsilons, logs)[0, 1])

    def release_mean(self, epsilon: float, delta: float) -> float:
        """Return the mean epsilon with noise, by one Gaussian mechanism; charged to the ledger."""
        noise = self._pay_release(epsilon, delta).draw()
        rows = torch.from_numpy(self.sensitive_epsilons).unsqueeze(1)
        total = private_sum(rows, bound=self.largest, noise_multiplier=noise, randomness=self.randomness)
        return float(np.clip(float(total) / len(rows), 0.0, self.largest))

    def release_by_group(self, epsilon: float, delta: float) -> pd.DataFrame:
        """Return each group's mean epsilon with noise, charged to the ledger: group, mean, standard_error.

        One Gaussian mechanism on the sums and the counts of all groups: each example is in one group, so all
        groups cost what one would. `standard_error` is that of the noise, from released values.
        """
        return self.means_by_group(self._pay_release(epsilon, delta))

    def means_by_group(self, payment: Payment) -> pd.DataFrame:
        """Return what `release_by_group` does, by a payment that was made in the ledger before the report.

        Raises:
            SettingError: the payment was made in another ledger.
            BudgetError: it was drawn already.
        """
        self.ledger.check_paid(payment)
        noise = payment.draw()
        count, largest = len(self.group_names), self.largest
        members = np.zeros((len(self.groups), 2 * count))
        members[np.arange(len(self.groups)), self.groups] = self.sensitive_epsilons / largest
        members[np.arange(len(self.groups)), count + self.groups] = 1.0
        released = private_sum(
            torch.from_numpy(members), bound=2**0.5, noise_multiplier=noise, randomness=self.randomness
        ).numpy()
        sizes = np.maximum(released[count:], 1.0)
        means = (released[:count] / sizes).clip(0.0, 1.0)
        errors = noise * 2**0.5 * np.sqrt(1 + means**2) / sizes
        means = np.minimum(largest * means, self.group_epsilons)  # a bound that is public
        return pd.DataFrame({"group": self.group_names, "mean": means, "standard_error": largest * errors})

    def release_quantiles(self, quantiles: list[float], epsilon: float, delta: float) -> list[float]:
        """Return quantiles of epsilon with noise, each at (epsilon, delta), charged to the ledger.

        Halves the range by noisy counts (`equidp.tables.release.private_quantile`).
        """
        if not all(0 < quantile < 1 for quantile in quantiles):
            raise SettingError(f"quantiles={quantiles}; expected numbers in (0, 1).")
        return [self._released_quantile(quantile, epsilon, delta) for quantile in quantiles]

    def _released_quantile(self, quantile: float, epsilon: float, delta: float) -> float:
        return private_quantile(
            self.sensitive_epsilons,
            quantile,
            low=0.0,
            high=self.largest,
            noise_multiplier=self._pay_release(epsilon, delta).draw(),
            randomness=self.randomness,
        )

    def _pay_release(self, epsilon: float, delta: float) -> Payment:
        """Pay for a release that costs (epsilon, delta)."""
        return self.ledger.pay(INDIVIDUAL, release_event(epsilon, delta).noise_multiplier)
