"""Choice of the plans of a comparison: one for all methods, and one for "auto" where they have another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

from equidp.accounting.planned import default_delta
from equidp.advice.advise import AUTO, DEFAULT_EPSILON, SHARED
from equidp.advice.chosen_plan import ASKED, RECOMMENDED, ChosenPlan, choose_plan
from equidp.comparison.plan import ComparisonPlan
from equidp.comparison.sweep import (
    Variant,
    automatic_variants,
    named_methods,
    sweep_variants,
    with_equal_groups,
)
from equidp.data.dataset import DataSource, GroupedDataset
from equidp.errors import SettingError
from equidp.training.plan import Plan


@final
@dataclass(frozen=True)
class ComparisonChoice:
    """Plans that the runs of a comparison train by.

    Attributes:
        asked: what is compared.
        shared: settings of all methods, except "auto" where it has settings of its own.
        automatic: settings of "auto" as a method of its own; None: "auto" is not compared, or has the shared
            settings.
        epsilons: targets; empty: the noise multiplier of the plans.
        num_examples: largest number of training examples of a seed.
    """

    asked: ComparisonPlan
    shared: ChosenPlan
    automatic: ChosenPlan | None
    epsilons: tuple[float, ...]
    num_examples: int

    @property
    def auto_takes(self) -> str:
        """Name of the method that "auto" is compared as; "" where it is not, or is a row of its own."""
        return self.shared.method if AUTO in self.asked.methods and self.automatic is None else ""

    @property
    def against(self) -> str:
        """Name of the method that others are compared with seed by seed; "" for none."""
        against = self.asked.against or ""
        return self.auto_takes or against if against == AUTO else against

    def of(self, method: str) -> ChosenPlan:
        """Settings of a method of the comparison."""
        return self.automatic if method == AUTO and self.automatic is not None else self.shared

    def variants(self) -> list[Variant]:
        """Return what is trained for each seed.

        Raises:
            SettingError: an epsilon, a swept setting or a value that no run can have.
        """
        asked, plan = self.asked, self.shared.plan
        methods = [self.auto_takes or each if each == AUTO else each for each in asked.methods]
        named = named_methods(methods)
        if self.against and len(named) + (self.automatic is not None) < 3:
            raise SettingError(
                f"against={self.asked.against!r}; expected another private method to compare with it, and "
                f"{AUTO} takes {self.auto_takes}."
            )
        found = sweep_variants(named, plan, self.epsilons, asked.sweep)
        if self.automatic is not None:
            own = self.automatic
            found += automatic_variants(own.method, own.plan, plan, self.epsilons, self.num_examples)
        return with_equal_groups(found)

    @property
    def swept(self) -> dict[str, tuple[Any, ...]]:
        """Settings of which several values are compared -> those values."""
        found, asked = dict[str, tuple[Any, ...]](), self.asked.swept
        for each in self.variants():
            for name, value in each.swept.items():
                if name not in asked:
                    found[name] = tuple(dict.fromkeys((*found.get(name, ()), value)))
        return {**asked, **found}


def choose_plans(
    asked: ComparisonPlan, source: DataSource, train: GroupedDataset, seed: int, num_examples: int
) -> ComparisonChoice:
    """Choose the plans of a comparison.

    With recommended settings, every method trains as "auto" does, except for settings of the method itself,
    and "auto" is compared under the name of the method that it recommends. With published settings, or a plan
    of the user's, "auto" has recommended settings of its own. They suit the smallest of several epsilons.

    Args:
        asked: what is compared.
        source: of the data.
        train: training part of the smallest split, whose examples hold a batch of every seed.
        seed: seed of that split.
        num_examples: number of examples of the largest training part, from which a delta that is not given
            follows for all runs.

    Raises:
        SettingError: published settings of data that has none.
    """
    swept, changes, automatic = tuple(asked.sweep), dict(asked.changes), None
    level: dict[str, Any] = {"epsilon": min(asked.target_epsilons, default=DEFAULT_EPSILON)}
    if not asked.target_epsilons and "noise_multiplier" in changes:
        level = {}
    if asked.plan is not None:
        shared = ChosenPlan(asked.plan.with_changes(changes), otherwise=ASKED)
    else:
        shared = choose_plan(source, train, seed, changes, asked.settings, swept=swept, level=level)
    shared = _with_delta(shared, num_examples)
    recommended = asked.plan is None and asked.settings == RECOMMENDED
    if AUTO in asked.methods and not recommended:
        of_plan = {name: getattr(shared.plan, name) for name in SHARED}
        of_plan = {name: value for name, value in of_plan.items() if value != getattr(Plan, name)}
        given = {**of_plan, **changes}
        automatic = _with_delta(choose_plan(source, train, seed, given, level=level), num_examples)
    epsilons = tuple(asked.target_epsilons)
    if recommended and not epsilons and "noise_multiplier" not in {*changes, *swept}:
        epsilons = (DEFAULT_EPSILON,)
    return ComparisonChoice(asked, shared, automatic, epsilons, num_examples)


def _with_delta(chosen: ChosenPlan, num_examples: int) -> ChosenPlan:
    """Return the settings with the delta of n examples where none is given."""
    if chosen.plan.delta is not None:
        return chosen
    return replace(chosen, plan=replace(chosen.plan, delta=default_delta(num_examples)))
