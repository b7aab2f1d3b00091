"""Options of a run as fields of dataclasses, from which command line, checks, files and the card follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import Field, field, fields
from typing import Any

from equidp._validate import check_number, check_whole, unknown_name

Check = Callable[[str, Any], None]
"""Raises SettingError unless an option, by name, can have a value."""
OnCard = Callable[[Any], bool]
"""True for plans of which a model card lists an option."""
Names = Iterable[str] | Callable[[], Iterable[str]]
"""Names that an option takes, or a function that loads them."""


def option(
    default: Any,
    meaning: str,
    check: Check | None = None,
    names: Names = (),
    *,
    label: str = "",
    on_card: OnCard | None = None,
    listed: bool = True,
    keyed: bool = True,
) -> Any:
    """Return a field of `Plan`, from which the command line, the check, the run's files and the card follow.

    Other parts of a run have such fields too, which are options of commands.

    Args:
        default: default value. MISSING: a value is required. Neither the default nor None is checked.
        meaning: its help, in a sentence.
        check: check of one value.
        names: values that the command line completes to. Others may be accepted too.
        label: on the card. "": the option's name.
        on_card: plans whose card lists the option. None: plans in which it differs from its default.
        listed: whether tables of settings always list it. False: only if it differs from its default.
        keyed: whether results of runs, and so the key of stored results, depend on it.
    """
    metadata = {
        "help": meaning,
        "check": check,
        "names": names,
        "label": label,
        "on_card": on_card,
        "listed": listed,
        "keyed": keyed,
    }
    return field(default=default, metadata=metadata)


def option_names(each: Field[Any]) -> tuple[str, ...]:
    """Return the names that a field made by `option` completes to."""
    names = each.metadata["names"]
    return tuple(names() if callable(names) else names)


def check_options(part: Any) -> None:
    """Raise a SettingError unless the value of each field made by `option` passes its check."""
    for each in fields(part):
        value, check = getattr(part, each.name), each.metadata.get("check")
        is_left_out = value is each.default or (value is None and "None" in str(each.type))
        if check is not None and not is_left_out:
            check(each.name, value)


def one_of(known: Names) -> Check:
    """Return the check of a name among known ones."""

    def check(name: str, value: Any) -> None:
        names = known() if callable(known) else known
        if value not in names:
            raise unknown_name(name, value, names)

    return check


def number_in(interval: str, hint: str = "") -> Check:
    """Return the check of a number within an interval, such as "[0, 1)"; see `check_number`."""
    return lambda name, value: check_number(interval, hint, **{name: value})


def whole_from(least: int, hint: str = "") -> Check:
    """Return the check of a whole number of at least `least`."""
    return lambda name, value: check_whole(least, hint, **{name: value})
