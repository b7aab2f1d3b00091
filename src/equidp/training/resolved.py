"""ResolvedPlan: a plan worked out for n examples in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from equidp.accounting.calibration import PROTECTIONS
from equidp.accounting.groups import GroupSettings
from equidp.accounting.planned import costliest_mechanism
from equidp.accounting.risk import FALSE_POSITIVE_RATES, Risk
from equidp.accounting.rows import epsilon as epsilon_of_rows
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.event import SMALLEST_SHARE, Event, EventCounts
from equidp.training.release import Release

# Parts that need torch are imported where they are used: accounting needs none of them.
if TYPE_CHECKING:
    import dp_accounting

    from equidp.kernel.policy import Policy
    from equidp.training.plan import Plan


@dataclass(frozen=True)
class ResolvedPlan:
    """A plan resolved for n training examples by `Plan.resolve`.

    Attributes:
        plan: the given plan, with the options of its method.
        method: name in `METHODS`, import path, or name of the policy's class.
        num_examples: n.
        group_names: names of the data's groups. Empty: not known.
        learning_rate: learning rate of the optimizer.
        sample_rate: sampling rate q = b / n.
        steps: number of steps T.
        noise_multiplier: noise multiplier sigma, or 0 for a method without privacy.
        delta: delta of the whole run.
        event: event of each step.
        rates, bound_shares: rates and bound shares of groups, given or derived from budgets or the method's
            bounds. None: all are 1.
        releases: (event, count) pairs of the releases, which epsilon also covers.
    """

    plan: Plan
    method: str
    num_examples: int
    group_names: tuple[str, ...]
    learning_rate: float
    sample_rate: float
    steps: int
    noise_multiplier: float
    delta: float
    event: Event
    rates: Mapping[str, float] | None = None
    bound_shares: Mapping[str, float] | None = None
    releases: EventCounts = ()

    @cached_property
    def policy(self) -> Policy:
        """The method's policy with its settings."""
        return self.plan.policy

    @property
    def charges(self) -> EventCounts:
        """(event, count) pairs of all that the run spends: steps and releases."""
        return (*self.releases, (self.event, self.steps))

    def epsilon(self, accountant: str | None = None, rows: int = 1) -> float:
        """Epsilon of the whole run by a name from `ACCOUNTANTS`; for several rows of one person by "pld"."""
        usual = self.plan.accountant if rows == 1 else "pld"
        return epsilon_of_rows(self.charges, self.delta, accountant or usual, rows)

    def release_costs(self) -> dict[str, float]:
        """Return the epsilon of each release by itself, by name."""
        names = dict.fromkeys(event.name for event, _ in self.releases)
        entries = {name: [each for each in self.releases if each[0].name == name] for name in names}
        return {name: epsilon_of(entries[name], self.delta) for name in names}

    def noise_of(self, release: Release) -> float:
        """Return the noise multiplier of a draw of a release."""
        return next(event.noise for event, _ in self.releases if event.name == release.name)

    def draws_of(self, release: Release) -> int:
        """Return how often a release is drawn."""
        return sum(count for event, count in self.releases if event.name == release.name)

    def epsilon_by_group(self, accountant: str | None = None) -> dict[str, float]:
        """Epsilon of each group by name, "*" for all others, or empty if groups are equal."""
        chosen = accountant or self.plan.accountant
        return {
            label.name: epsilon_of(self.charges, self.delta, chosen, label) for label in self.event.labels
        }

    def risk(self, false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES, rows: int = 1) -> Risk:
        """Upper bound of any membership attack's success on the whole run; see `Risk`."""
        return Risk.of(self.charges, false_positive_rates, rows)

    def dp_event(self) -> dp_accounting.DpEvent:
        """The run as a dp_accounting event for independent checks, of the group with the largest epsilon."""
        return costliest_mechanism(self.charges, self.delta)

    def check_data(self, num_examples: int, group_names: Sequence[str]) -> None:
        """Raise a SettingError unless the plan was resolved for data of this size and these groups."""
        if self.plan.sample_rate is None and num_examples != self.num_examples:
            raise SettingError(
                f"the plan was resolved for {self.num_examples} examples, and the data has {num_examples}; "
                "give the Plan itself.",
                field="plan",
            )
        if self.event.shares and tuple(group_names) != self.group_names:
            raise SettingError(
                f"the plan was resolved for groups {', '.join(self.group_names) or 'that were not named'}, "
                f"and the data has {', '.join(group_names) or 'none'}; give the Plan itself.",
                field="plan",
            )

    @property
    def card_options(self) -> dict[str, Any]:
        """Options that a model card lists in addition to the facts of a run, by label, as plain values."""
        values, changed = self.settings, self.plan.changed_options
        return {
            each.metadata["label"] or each.name.replace("_", " "): values[each.name]
            for each in self.plan.options()
            if (on_card(self.plan) if (on_card := each.metadata["on_card"]) else each.name in changed)
        }

    def with_class_weight(self, weights: Mapping[str, float] | None) -> ResolvedPlan:
        """Return this plan with other public class weights."""
        return replace(self, plan=replace(self.plan, class_weight=weights))

    @property
    def settings(self) -> dict[str, Any]:
        """Plain values of all given and derived settings, by name.

        A derived value replaces the given value of the same name. The policy replaces the method settings.
        """
        given = {name: value for name, value in self.plan.to_plain().items() if name in self.plan.names()}
        return {
            **given,
            **self._worked_out(),
            "policy": asdict(self.policy),  # type: ignore[call-overload]
            "class_weight": self.plan.class_weights,
            "epsilon_by_group": self.plan.groups.budgets or None,
        }

    @property
    def key_parts(self) -> dict[str, Any]:
        """Plain values that results of this plan depend on, by name.

        They are the derived values and the options that differ from their defaults. The names of method,
        model and loss are left out, because the code identifies them."""
        keyed = {each.name for each in self.plan.options() if each.metadata["keyed"]}
        worked_out = {name: value for name, value in self._worked_out().items() if value is not None}
        names = dict.fromkeys((*keyed.intersection(self.plan.changed_options), *worked_out, "policy"))
        settings = self.settings
        return {name: settings[name] for name in names if name not in ("method", "model", "loss")}

    def to_plain(self) -> dict[str, Any]:
        """Return plain values that `from_plain` reads."""
        releases = [[asdict(event), count] for event, count in self.releases]
        worked_out = {**self._worked_out(), "event": asdict(self.event), "releases": releases}
        return {"plan": self.plan.to_plain(), **worked_out, "group_names": list(self.group_names)}

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> ResolvedPlan:
        """Read the result of `to_plain`. Method and model must have a name or an import path."""
        from equidp.training.plan import Plan  # which makes resolved plans

        return cls(
            **{
                **content,
                "plan": Plan.from_plain(content["plan"]),
                "group_names": tuple(content["group_names"]),
                "event": Event.of_record(content["event"]),
                "releases": tuple((Event.of_record(event), count) for event, count in content["releases"]),
            }
        )

    def _worked_out(self) -> dict[str, Any]:
        left_out = ("plan", "event", "releases", "group_names")
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in left_out}


def with_public_bounds(groups: GroupSettings, policy: Policy, group_names: Sequence[str]) -> GroupSettings:
    """Return the settings with the shares of the bound that a policy leaves to each group.

    If a policy learns nothing, its bounds are public and the same in all steps: c_k = bound_k / S. If a
    policy learns, its bounds differ from step to step, and each group may use all of S.

    Raises:
        SettingError: shares were given in addition to the policy's shares, or a share is below 1/16 of the
            largest.
    """
    import math

    from equidp.kernel.bounding import group_bounds
    from equidp.kernel.policy import Setting
    from equidp.policies.by_group import in_groups

    policy = in_groups(policy, group_names)
    if policy.statistics_ratio is not None or policy.loss_terms:
        return groups
    count = len(group_names)
    bounds = group_bounds(policy, policy.init(Setting(count, 1.0, 1.0)), count)
    if not 0 < bounds.min() < bounds.max() < math.inf:  # equal, or refused by `check_own_policy`
        return groups
    shares = dict(zip(group_names, (bounds / bounds.max()).tolist(), strict=True))
    if groups.bound_shares or (groups.is_open and groups.protect_by != PROTECTIONS[0]):
        raise SettingError(
            f"bound_shares are given or follow, and {type(policy).__name__} has bounds by group; leave one "
            "of the two out.",
            field="bound_shares",
        )
    smallest = min(shares, key=shares.__getitem__)
    if shares[smallest] < SMALLEST_SHARE:
        raise SettingError(
            f"the bound of group {smallest!r} is {shares[smallest]:.3g} of the largest; expected at least "
            "1/16, so that rounding stays small in comparison.",
            field="bound",
        )
    return replace(groups, bound_shares=shares)
