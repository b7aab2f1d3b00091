"""Privacy that a planned run would spend, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equidp.accounting.groups import OTHER_GROUPS
from equidp.accounting.planned import PlannedRun
from equidp.accounting.rows import checked_rows
from equidp.kernel.epsilon import ACCOUNTANTS, effective_noise_multiplier
from equidp.kernel.ledger import GroupedStepEvent


def planned_sentences(planned: PlannedRun, rows_per_person: Sequence[int] = ()) -> list[str]:
    """Lines on a planned run: steps, noise, epsilon by every accountant, risk, and how to check them.

    Args:
        planned: from `equidp.accounting.account`.
        rows_per_person: numbers of rows to state the same for, for people who own several.

    Raises:
        SettingError: a number of rows that is not whole and >= 1.

    >>> from equidp.accounting.planned import account
    >>> planned_sentences(account(60_000, 256, epochs=30, noise_multiplier=1.0))[0]
    '7,031 steps, each on a Poisson sample at rate 0.00426667; noise multiplier 1.'
    """
    several = [checked_rows(rows) for rows in rows_per_person if rows != 1]
    event = planned.event
    noise = f"noise multiplier {event.noise_multiplier:.6g}"
    if event.statistics_noise is not None:
        joint = effective_noise_multiplier(event.noise_multiplier, event.statistics_noise)
        noise += f" for gradients and {event.statistics_noise:.6g} for statistics, together {joint:.6g}"
    at = f"at delta {planned.delta:g}"
    groups = planned.event.by_group if isinstance(planned.event, GroupedStepEvent) else ()
    own = planned.epsilon_by_group()
    return [
        f"{planned.steps:,} steps, each on a Poisson sample at rate {event.sample_rate:.6g}; {noise}.",
        *(
            f"{_group_text(each.name)}: drawn at rate {each.sample_rate:.6g}, {each.bound_share:.4g} of the "
            f"bound; epsilon {_epsilon_text(own[each.name])} {at} (pld)"
            for each in groups
        ),
        *(f"epsilon {_epsilon_text(planned.epsilon(name))} {at} ({name})" for name in ACCOUNTANTS),
        f"any membership attack: {planned.risk()}",
        *(
            f"{rows} rows of one person: epsilon {_epsilon_text(planned.epsilon(rows=rows))} {at} (pld); "
            f"{planned.risk(rows=rows)}"
            for rows in several
        ),
        f"To check with dp_accounting: {planned.dp_event()}",
    ]


def epsilon_of_groups_text(epsilons: Mapping[str, float]) -> str:
    """Text of the epsilon of each group.

    >>> epsilon_of_groups_text({"rare": 0.9991, "*": 2.9999})
    'rare 0.9991, all other groups 2.9999'
    """
    named = {"all other groups" if name == OTHER_GROUPS else name: each for name, each in epsilons.items()}
    return ", ".join(f"{name} {_epsilon_text(found)}" for name, found in named.items())


def _group_text(name: str) -> str:
    return "all other groups" if name == OTHER_GROUPS else f"group {name}"


def _epsilon_text(value: float) -> str:
    return f"{value:.4f}" if value >= 0.1 else f"{value:.4g}"
