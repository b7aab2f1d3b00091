"""Whose privacy is counted: that of rows, or of people with all their rows.

The two add up to no epsilon: a person with several rows loses more by a run on rows than its epsilon says.
"""

from __future__ import annotations

import os
import shlex

from equidp.errors import BudgetError

BY_PERSON = "by person"
"""How the name of data ends whose examples are people."""


def counts_people(data: str) -> bool:
    """Whether the examples of data of this name are people.

    >>> counts_people("visits by person"), counts_people("visits")
    (True, False)
    """
    return data.endswith(BY_PERSON)


def of_another_unit(path: str | os.PathLike[str] | None, people: bool) -> BudgetError:
    """What a budget says of data whose examples are people, or are not."""
    counted, given = ("people", "single rows") if not people else ("single rows", "people")
    return BudgetError(
        f"{_named(path)} counts {counted}, and this run is on {given}: what they spend cannot be added. Give "
        "the run a budget of its own, and see equidp account --rows-per-person for what runs on rows cost "
        "people."
    )


def of_other_people(path: str | os.PathLike[str] | None, kept: str, given: str) -> BudgetError:
    """What a budget says of data of another name."""
    return BudgetError(
        f"{_named(path)} is for the people of {kept!r}, not of {given!r}. Other people have a budget of "
        "their own: name another file. If they are the same people under another name, say so: "
        f"PrivacyBudget(data={kept!r}), or --budget-data {shlex.quote(kept)}."
    )


def _named(path: str | os.PathLike[str] | None) -> str:
    return "this budget" if path is None else f"the budget {os.fspath(path)!r}"
