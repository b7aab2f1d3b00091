"""Table of what accounts of single examples (`full_steps`, `individual_filter`) do not go with, and why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from equidp.errors import SettingError

CONFLICTS: Mapping[str, str] = MappingProxyType(
    {
        "statistics": "the method releases statistics, which everyone pays for in full; choose a method "
        "without statistics, such as dpsgd",
        "noise": "a run without noise has no accounts; choose a private method, and an epsilon or noise",
        "groups": "rates, bounds, budgets and levels treat examples differently as well; give one of the two",
        "views": "norms are of examples as they are; leave out views and augmentation",
        "data": "norms need the data in memory; give an equidp.GroupedDataset",
        "processes": "several processes do not share accounts; train in one process",
        "accountant": "accounts are kept in Renyi divergences, as privacy loss distributions have no such "
        "filter; leave the accountant out, or give rdp",
        "risk": "a target risk counts every step in full; give an epsilon",
        "budget": "a budget counts every step in full; leave one of the two out",
        "releases": "the order of the accounts is the best one for the steps alone; leave out recalibration, "
        "counts of classes, private preprocessing and released epsilons",
        "individual": "individual epsilons are of steps that everyone is in; leave one of the two out",
        "audit": "an audit is of steps that everyone is in; leave the accounts out",
    }
)
"""Property that a run with accounts cannot have -> end of the error that says so."""


def check_conflicts(field: str, value: float, found: Mapping[str, bool]) -> None:
    """Refuse what accounts of single examples do not go with.

    Args:
        field: option that gives examples accounts, `full_steps` or `individual_filter`.
        value: of the option; 0: no accounts, and nothing is refused.
        found: names in `CONFLICTS` -> whether the run has it.

    Raises:
        SettingError: of the field, for the first that is found.

    >>> check_conflicts("full_steps", 30, {"budget": False})
    >>> check_conflicts("full_steps", 30, {"budget": True})
    Traceback (most recent call last):
    ...
    equidp.errors.SettingError: full_steps=30 gives each example an account, and a budget counts every step...
    """
    for name, present in found.items():
        reason = CONFLICTS[name]
        if value and present:
            raise SettingError(f"{field}={value:g} gives each example an account, and {reason}.", field=field)
