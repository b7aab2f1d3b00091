"""Guarantee of a run as data, and in words: all texts about epsilon and delta are written here."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, final

from equidp.accounting.groups import OTHER_GROUPS
from equidp.accounting.replacement import replacement_epsilon
from equidp.accounting.risk import Risk
from equidp.accounting.rows import checked_rows, epsilon
from equidp.display import shown_epsilon
from equidp.errors import count_text
from equidp.kernel.epsilon import ACCOUNTANTS, epsilon as epsilon_of
from equidp.kernel.event import STEP, Event, EventCounts
from equidp.ledger.ledger import Ledger
from equidp.ledger.renyi import renyi_code
from equidp.report.format import upper

if TYPE_CHECKING:
    from equidp.training.resolved import ResolvedPlan
    from equidp.training.run import Run, RunFacts

_STRONG, _WEAK = 1.0, 7.0  # epsilons: factors of about 2.7 and 1,000 on the odds
_LEDGER_DELTAS = (1e-5, 1e-6, 1e-7)

EXCLUSIONS = {
    "other runs": "Other runs on the same data, and settings chosen by looking at their results, cost more.",
    "public facts": "The number of examples or people, the names of groups and classes, and all settings "
    "count as public.",
    "test set": "Metrics are exact for the test examples, which the guarantee does not cover.",
    "second card": "A second card of the same test people, by other groups, can give small groups away by "
    "subtraction.",
    "rounding": "Noisy sums are rounded to about a thousandth of their noise, so gaps between floating-point "
    "numbers could reveal something only beyond 8 standard deviations of noise.",
    "machine": "Timing and memory of the machine are not covered.",
    "initial weights": "The initial weights were given. If they were trained on this data, the epsilon of "
    "that training must be added.",
    "optimizer state": "Warning: the optimizer came with state of earlier steps, such as momentum. If raw "
    "gradients of this data are in it, the guarantee does not hold.",
    "weights between steps": "Warning: other code than the private steps changed the weights. If it read "
    "this data, the guarantee does not hold.",
}
"""Name of an exclusion, for which no epsilon was charged -> its sentence."""
_SEEN = {"optimizer state": "optimizer_state", "weights between steps": "between_steps"}
"""Name of an exclusion that a run may have seen -> the field of its `Start`."""
_EVERY_RUN = ("other runs", "public facts", "test set", "second card", "rounding", "machine")

LARGER_EPSILON = (
    "Groups with a larger epsilon are easier to attack than if all groups had the same epsilon (arXiv "
    "2601.12922), and the model tends to be more accurate for them (arXiv 2605.07930)."
)
"""Sentence on what epsilons that differ do to the groups with the larger ones, as these papers found."""

_STATED = re.compile(r"\bTraining was \(([0-9.e+-]+), ([0-9.e+-]+)\)-differentially private")


@final
@dataclass(frozen=True)
class Guarantee:
    """Guarantee of a run, as data.

    Attributes:
        epsilon: epsilon of all releases together, or infinite if training had no noise.
        delta: delta at which epsilon holds.
        unit: unit whose data the guarantee protects.
        accountant: name of the accountant that computed epsilon.
        by_group: epsilon of each group, or empty if all groups have the same.
        rows: most rows of one person that were trained on. None: an example is a row.
        examples: number of training examples, or of people. None: not known.
        releases: (event, count) pairs that epsilon was charged for.
        exclusions: what no epsilon was charged for: names in `EXCLUSIONS`.

    Example:
        >>> Guarantee(3.0, 1e-5).short
        '(3, 1e-05)-differentially private for each training example'
    """

    epsilon: float
    delta: float
    unit: Literal["example", "person"] = "example"
    accountant: str = "pld"
    by_group: Mapping[str, float] = field(default_factory=dict)
    rows: int | None = None
    examples: int | None = None
    releases: EventCounts = ()
    exclusions: tuple[str, ...] = _EVERY_RUN

    @classmethod
    def of(cls, run: Run) -> Guarantee:
        """Return the guarantee of a run."""
        from equidp.training.initial_weights import GIVEN  # not before: plans need no torch
        from equidp.training.run import merge_entries

        facts = run.facts
        differ = any(event.shares for event, _ in run.entries)
        weights = ("initial weights",) if facts.start.weights == GIVEN else ()
        seen = [name for name, field in _SEEN.items() if getattr(facts.start, field)]
        return cls(
            epsilon=run.epsilon(),
            delta=run.delta,
            unit=privacy_unit(facts),
            accountant=run.accountant,
            by_group=run.epsilon_by_group() if differ else {},
            rows=facts.rows,
            examples=facts.num_examples,
            releases=merge_entries(run.entries),
            exclusions=(*_EVERY_RUN, *weights, *seen),
        )

    @property
    def private(self) -> bool:
        """Return whether there is a guarantee."""
        return math.isfinite(self.epsilon)

    @property
    def units(self) -> str:
        """Plural of the unit."""
        return "people" if self.unit == "person" else "examples"

    @property
    def short(self) -> str:
        """The guarantee in a few words."""
        if not self.private:
            return "not private"
        each = "training example" if self.unit == "example" else "person in the training data"
        return f"({shown_epsilon(self.epsilon):g}, {self.delta:g})-differentially private for each {each}"

    def plain(self) -> dict[str, Any]:
        """Return plain values for JSON; epsilon is None if there is no guarantee."""
        return {
            "epsilon": self.epsilon if self.private else None,
            "delta": self.delta,
            "accountant": self.accountant,
            "unit": self.unit,
            "relation": "add or remove one",
            "epsilon_by_group": dict(self.by_group),
            "exclusions": list(self.exclusions),
        }


def privacy_unit(facts: RunFacts) -> Literal["example", "person"]:
    """Return the unit of privacy: an example, or a person with several rows."""
    return "example" if facts.rows is None else "person"


def stated_guarantees(card: str) -> set[tuple[float, float]]:
    """Return epsilon and delta of each guarantee that a card states, as text or as a page.

    >>> stated_guarantees(headline(Guarantee(2.9991, 1e-5)))
    {(3.0, 1e-05)}
    """
    words = " ".join(re.sub(r"<[^>]+>", "", card).split())
    return {(float(match[1]), float(match[2])) for match in _STATED.finditer(words)}


def headline(guarantee: Guarantee) -> str:
    """Return the first sentence about a guarantee, which a verifier looks for on a card."""
    if not guarantee.private:
        return "No guarantee: this model was trained without noise and may reveal its training data."
    if guarantee.epsilon >= _WEAK:
        one = "a single training example" if guarantee.unit == "example" else "the rows of a single person"
        meaning = f"what the model reveals can depend strongly on {one}"
    else:
        amount = "only a limited amount" if guarantee.epsilon > _STRONG else "hardly anything"
        article = "an" if guarantee.unit == "example" else "a"
        meaning = f"the model reveals {amount} about whether {article} {guarantee.unit} was in the data"
    return f"Training was {guarantee.short}: {meaning}."


def guarantee_sentences(guarantee: Guarantee) -> list[str]:
    """Return the guarantee in sentences for readers who do not know epsilon."""
    if not guarantee.private:
        return [headline(guarantee)]
    spent, delta, unit = guarantee.epsilon, guarantee.delta, guarantee.unit
    article = "an" if unit == "example" else "a"
    factor = f"about {math.exp(spent):,.3g}" if spent < _WEAK else "more than 1,000, which promises little"
    sentences = [
        headline(guarantee),
        f"In odds: someone who has the model and knows everything else can change the odds that {article} "
        f"{unit} was in the data by a factor of at most e^{shown_epsilon(spent):g}, {factor}, apart from "
        f"delta, {delta:g}, which is added to probabilities. This holds for every {unit} of every group.",
        *_group_sentences(guarantee),
    ]
    sentences += [EXCLUSIONS[each] for each in _SEEN if each in guarantee.exclusions]
    if guarantee.examples is not None and delta >= 1 / guarantee.examples:
        sentences.append(
            f"Warning: delta is not below 1/n, n = {guarantee.examples:,}: a method that publishes all of "
            f"one {unit} would count as private too."
        )
    return sentences


def _group_sentences(guarantee: Guarantee) -> list[str]:
    """Sentences on the epsilon of each group, and on what larger ones do, or none for equal groups."""
    if not guarantee.by_group:
        return []
    listed = ", ".join(f"{name} {upper(each)}" for name, each in guarantee.by_group.items())
    sentences = [
        f"By group, fixed before training, epsilon is at most: {listed}. It follows from the rate at which "
        f"the group's {guarantee.units} are drawn and from the bound on their gradients. Labels decide who "
        "is in a group."
    ]
    if guarantee.unit == "person":
        sentences.append("A person with rows in several groups counts in the one with the largest rate.")
    if epsilons_differ(guarantee.by_group.values()):
        sentences.append(LARGER_EPSILON)
    return sentences


def epsilons_differ(epsilons: Iterable[float]) -> bool:
    """Return whether epsilons of groups differ by more than a search for equal ones leaves.

    >>> epsilons_differ([2.99, 3.0]), epsilons_differ([1.0, 3.0])
    (False, True)
    """
    values = list(epsilons)
    return max(values) > 1.02 * min(values)


def risk_sentence(risk: Risk, units: str) -> str:
    """Return the most that any attack on a run achieves; `units`: "people" or "examples"."""
    rates = "; ".join(
        f"one that wrongly names {1000 * rate:g} of them finds at most {per_thousand(share)} of 1,000 "
        f"{units} that were"
        for rate, share in zip(risk.false_positive_rates, risk.true_positive_rates, strict=True)
    )
    return (
        f"Take any attack, and 1,000 {units} that were not in the data: {rates}. The two rates differ by at "
        f"most {upper(risk.advantage)}. These are bounds on all attacks, not the success of one."
    )


def per_thousand(share: float) -> str:
    """Text of a share as a number of 1,000, rounded up to a tenth."""
    return f"{math.ceil(1e4 * share - 1e-9) / 10:,.1f}"


def owner_sentence(guarantee: Guarantee, run: Run) -> str:
    """Return the sentence on people who own several examples, or whose ids are wrong."""
    if guarantee.rows is not None:
        return (
            f"The guarantee is for each person, with at most {guarantee.rows:,} rows in training. It relies "
            "on the ids in the data: someone with two ids counts as two people."
        )
    single = "The guarantee is for one example. Someone who owns several is protected less"
    if not guarantee.private:
        return f"{single}."
    return (
        f"{single}: epsilon is {upper(run.epsilon(rows=2))} for two examples, at the same delta "
        "(for more, see equidp account --rows-per-person)."
    )


def replacement_text(guarantee: Guarantee) -> str:
    """Text on epsilon if one example or person is replaced by another."""
    if not guarantee.private:
        return "no guarantee"
    least = replacement_epsilon(guarantee.releases, guarantee.delta, guarantee.accountant)
    shown = f"epsilon at most {upper(least)}" if math.isfinite(least) else "no epsilon below 1,200 is known"
    return f"{shown} at the same delta, as removing one and adding one"


def planned_sentences(planned: ResolvedPlan, rows_per_person: Sequence[int] = ()) -> list[str]:
    """Return lines on a planned run: steps, noise, epsilon by every accountant, risk, and how to check them.

    Args:
        planned: from `equidp.training.plan.account`.
        rows_per_person: numbers of rows to state the same for, for people who own several.

    Raises:
        SettingError: a number of rows that is not whole and >= 1.

    >>> from equidp.training.plan import account
    >>> planned_sentences(account(60_000, epochs=30, noise_multiplier=1.0))[0]
    '7,031 steps, each on a Poisson sample at rate 0.00426667; noise multiplier 1.'
    """
    several = [checked_rows(rows) for rows in rows_per_person if rows != 1]
    event = planned.event
    noise = f"noise multiplier {event.noise:.6g}"
    if event.statistics_noise is not None:
        together = f"together {event.cost().noise:.6g}"
        noise += f" for gradients and {event.statistics_noise:.6g} for statistics, {together}"
    at = f"at delta {planned.delta:g}"
    by_group = planned.epsilon_by_group("pld")
    return [
        f"{planned.steps:,} steps, each on a Poisson sample at rate {event.rate:.6g}; {noise}.",
        *(
            f"{_group_name(each.label)}: drawn at rate {each.rate:.6g}, {each.bound:.4g} of the "
            f"bound; epsilon {_epsilon_text(by_group[each.label])} {at} (pld)"
            for each in event.shares
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
    'group rare 0.9991, all other groups 2.9999'
    """
    return ", ".join(f"{_group_name(name)} {_epsilon_text(each)}" for name, each in epsilons.items())


def _group_name(name: str) -> str:
    return "all other groups" if name == OTHER_GROUPS else f"group {name}"


def _epsilon_text(value: float) -> str:
    return f"{value:.4f}" if value >= 0.1 else f"{value:.4g}"


def release_text(event: Event, count: int) -> str:
    """Text of how often a mechanism was released, such as "15 steps" or "1 release of class counts"."""
    return (
        count_text(count, STEP) if event.name == STEP else f"{count_text(count, 'release')} of {event.name}"
    )


def ledger_lines(ledger: Ledger) -> list[str]:
    """Return lines on what each run in a ledger spent, what that adds up to, and how to check it."""
    deltas = _LEDGER_DELTAS if ledger.limit is None else (ledger.limit[1],)
    lines = [f"{count_text(len(ledger.runs), 'run')} on {ledger.unit}."]
    for run in ledger.runs:
        entries = ledger.entries(run)
        lines += ["", f"Run {run}, up to the line with checksum {ledger.last_check(run)}:"]
        lines += [f"  {release_text(event, count)}: {event}." for event, count in entries]
        labels = {label: None for event, _ in entries for label in event.labels}
        for delta in deltas:
            lines.append(f"  By itself: epsilon {epsilon(entries, delta):.6g} at delta {delta:g}.")
            if labels:
                by_group = {label.name: epsilon_of(entries, delta, label=label) for label in labels}
                lines.append(f"  By group: epsilon {epsilon_of_groups_text(by_group)}.")
    together = [f"Together: {together_text(ledger, each)}, however each run was chosen." for each in deltas]
    return [
        *lines,
        "",
        *together,
        f"To check with dp_accounting: {renyi_code(ledger.entries(), ledger.order, deltas[0])}",
    ]


def together_text(ledger: Ledger, delta: float) -> str:
    """Text of the epsilon that all runs in a ledger have spent together."""
    limit = ledger.limit
    of = f" of a limit of {limit[0]:g}" if limit is not None and delta == limit[1] else ""
    spent = f"epsilon {ledger.spent(delta=delta):.6g}{of} at delta {delta:g}"
    return f"{spent}, by Renyi divergences of order {ledger.order:g}"


def together_sentence(ledger: Ledger, delta: float, units: str) -> str:
    """Return the sentence of a card on what all runs in its ledger have spent; `units`: rows or people."""
    if len(ledger.runs) == 1:
        return "It is the only run in its ledger so far. Runs outside the ledger are not known here."
    delta = delta if ledger.limit is None else ledger.limit[1]
    return (
        f"All {len(ledger.runs)} runs in its ledger so far have spent {together_text(ledger, delta)}. That "
        f"is what holds for {units} in the data of all of them. Runs outside the ledger are not known here."
    )


def compared_sentences(epsilons: Mapping[str, float], delta: float) -> list[str]:
    """Sentences on the guarantee of several runs by the names of their methods, as a comparison has them."""
    listed = ", ".join(f"{name} {each:.3f}" for name, each in epsilons.items())
    return [
        "The unit is one training example, added or removed. With and without it, a private model and all "
        "that is computed from it have almost the same distribution: probabilities differ by at most a "
        f"factor e^epsilon, up to a probability of delta = {delta:g}.",
        f"Epsilon of each private run: {listed}.",
    ]
