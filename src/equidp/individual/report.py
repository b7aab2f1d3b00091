"""The privacy of each example and each group, and noisy releases of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

from equidp._extras import require_extra
from equidp.accounting.planned import INDIVIDUAL, release_event
from equidp.accounting.risk import EPSILONS, Risk
from equidp.data.dataset import ALL
from equidp.display import shown_epsilon
from equidp.errors import SettingError
from equidp.individual.accounts import Accounts, Floats
from equidp.individual.epsilons import individual_epsilons, individual_profiles
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Entries, Label
from equidp.kernel.noise import Randomness
from equidp.kernel.noisy_sum import private_sum
from equidp.ledger.ledger import Ledger
from equidp.tables.release import private_quantile

with require_extra("tables"):
    import pandas as pd

T = TypeVar("T")


@dataclass(frozen=True)
class IndividualReport:
    """Epsilon of each training example. Private: publish only what a `release_` method returns.

    An example's epsilon bounds what this run's releases reveal about it, given the trajectory that the run
    took. The worst case over all trajectories is the run's epsilon. Every epsilon includes in full all other
    entries of the ledger at the time of the report, such as private preprocessing, and no later release.

    Attributes:
        sensitive_epsilons: epsilon of each example, [n].
        group_epsilons: largest epsilon that a member of each group can have in the whole plan, [K], by the
            bounds that the policy released. Not sensitive.
        groups: indices into `group_names`, [n].
        group_names: one name per group.
        largest: epsilon of the whole plan and all other entries of the ledger, guaranteed to every example.
        delta: delta of all epsilons.
        guaranteed: whether epsilons are upper bounds. False: they are estimates.
        ledger, run_id: ledger and run that pay for releases.
        randomness: source of the noise of releases.
        group_profiles: delta of a member of each group at `equidp.accounting.risk.EPSILONS`, [K, 401]. Not
            sensitive.
        spent: (event, number of steps) pairs that the profiles cover.

    Example:
        >>> import torch, equidp
        >>> groups = torch.tensor([0, 0, 1, 1])
        >>> data = equidp.GroupedDataset(torch.eye(4), groups, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=2, steps=3,
        ...                          noise_multiplier=2.0, delta=0.01, individual=equidp.Individual(1))
        >>> run = trainer.fit()
        >>> report = trainer.individual_report()
        >>> report.sensitive_by_group()["count"].tolist()
        [2, 2, 4]
        >>> bool(report.sensitive_epsilons.max() <= report.largest)
        True
    """

    sensitive_epsilons: npt.NDArray[np.float64] = field(repr=False)
    group_epsilons: npt.NDArray[np.float64] = field(repr=False)
    groups: npt.NDArray[np.int64] = field(repr=False)
    group_names: tuple[str, ...]
    largest: float
    delta: float
    guaranteed: bool
    ledger: Ledger
    run_id: str
    randomness: Randomness
    group_profiles: npt.NDArray[np.float64]
    spent: Entries

    def group_risks(self) -> dict[str, Risk]:
        """Return upper bounds of any membership attack's success on a member of each group, in this training.

        They follow from the bounds that the policy released, never from examples, so they cost nothing.
        """
        whole = Risk.of(self.spent)
        return {
            name: Risk.of_profile(EPSILONS, deltas).at_most(whole)
            for name, deltas in zip(self.group_names, self.group_profiles, strict=True)
        }

    def for_owner(self, index: int) -> str:
        """Return a text only for the person whose example this is, with epsilons rounded up."""
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
        """Return count, mean, quantiles and maximum of epsilon, one row per group and one for all.

        `over_lowest` is the mean divided by the lowest mean of a group. NaN: a group without examples.
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

    def release_mean(self, epsilon: float, delta: float) -> float:
        """Return the mean epsilon with noise, by one Gaussian mechanism charged to the ledger."""
        rows = torch.from_numpy(self.sensitive_epsilons).unsqueeze(1)

        def draw(noise: float) -> float:
            total = private_sum(rows, bound=self.largest, noise_multiplier=noise, randomness=self.randomness)
            return float(np.clip(float(total) / len(rows), 0.0, self.largest))

        return self._release(epsilon, delta, draw)

    def release_by_group(self, epsilon: float, delta: float) -> pd.DataFrame:
        """Return each group's mean epsilon with noise, charged to the ledger: group, mean, standard_error.

        This is one Gaussian mechanism on the sums and the counts of all groups. Each example is in one group,
        so all groups cost as much as one. `standard_error` is the standard error of the noise, from released
        values.
        """
        return self._release(epsilon, delta, self.draw_means)

    def draw_means(self, noise: float) -> pd.DataFrame:
        """Return the table of `release_by_group`, for a noise multiplier that was paid for by
        `Ledger.release`."""
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
        """Return quantiles of epsilon with noise, each at (epsilon, delta), charged to the ledger."""
        if not all(0 < quantile < 1 for quantile in quantiles):
            raise SettingError(f"quantiles={quantiles}; expected numbers in (0, 1).")

        def draw(noise: float, quantile: float) -> float:
            return private_quantile(
                self.sensitive_epsilons,
                quantile,
                low=0.0,
                high=self.largest,
                noise_multiplier=noise,
                randomness=self.randomness,
            )

        return [self._release(epsilon, delta, partial(draw, quantile=quantile)) for quantile in quantiles]

    def _release(self, epsilon: float, delta: float, draw: Callable[[float], T]) -> T:
        """Pay for a release that costs (epsilon, delta), and draw it."""
        return self.ledger.release(self.run_id, INDIVIDUAL, release_event(epsilon, delta).noise, draw)


def make_report(
    accounts: Accounts, ledger: Ledger, run: str, planned: Entries, delta: float, accountant: str
) -> IndividualReport:
    """Return the report of a run, whose accounts are complete.

    `planned` is what its ledger has and what is left of the plan. Steps that were not taken count in full for
    groups, because results may have decided when to stop.
    """
    event, data, shares = accounts.step.event, accounts.data, accounts.grid
    groups, own = data.groups.cpu().numpy(), np.arange(data.num_groups)
    labels = [Label(event.column, name) for name in data.group_names]

    def most(entries: Entries) -> Floats:
        """Epsilons of members of each group that use all that they may, [K]."""
        largest = epsilon(entries, delta, accountant)
        return np.array([min(largest, epsilon(entries, delta, accountant, label)) for label in labels])

    spent = ledger.entries(run)
    taken, left = (tuple(each for each in entries if each[0] != event) for entries in (spent, planned))
    whole = accounts.group_counts.copy()
    whole[:, -1] += sum(count for each, count in planned if each == event) - whole.sum(axis=1)
    found = individual_epsilons(accounts.counts, shares, event, delta, accountant, taken, groups)
    of_groups = individual_epsilons(whole, shares, event, delta, accountant, left, own)
    return IndividualReport(
        sensitive_epsilons=np.minimum(found, most(spent)[groups]),
        group_epsilons=np.minimum(of_groups, most(planned)),
        groups=groups,
        group_names=data.group_names,
        largest=epsilon(planned, delta, accountant),
        delta=delta,
        guaranteed=accounts.guaranteed,
        ledger=ledger,
        run_id=run,
        randomness=accounts.step.randomness,
        group_profiles=individual_profiles(whole, shares, event, EPSILONS, others=left, labels=own),
        spent=planned,
    )
