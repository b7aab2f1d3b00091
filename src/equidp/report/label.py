"""Privacy label of a model: its guarantee on one page, for readers of a model who read no card."""

from __future__ import annotations

import math
from collections.abc import Sequence

from equidp._provenance import versions
from equidp.data.dataset import uncovered_notes
from equidp.display import shown_epsilon
from equidp.errors import count_text
from equidp.kernel.ledger import GroupedStepEvent
from equidp.report.document import Block, Callout, Document, Facts, Heading, Listing, Paragraph, paragraphs
from equidp.report.format import capitalise, facts_table, upper
from equidp.report.guarantee import guarantee_sentences, mechanisms, owner_epsilons, per_thousand
from equidp.training.run import Run

_LIMITS = (
    "Other runs on the same data, and settings chosen by their results: they spend more.",
    "What counts as public: the number of training examples or people, names of columns, groups and classes, "
    "and all settings.",
    "Test examples, and running time and memory of the machine.",
)


def privacy_label(
    run: Run, data: str, *, method: str, notes: Sequence[str], weights: str, kernel: str | None
) -> Document:
    """Return the label of a run, without any value of rows.

    Args:
        run: that the label is of.
        data: name of the data.
        method: name of the method.
        notes: sentences on how the data was prepared, and what epsilon does not cover.
        weights: SHA-256 of the file of the weights.
        kernel: SHA-256 of the code that the guarantee rests on, from the run; None: not recorded.
    """
    spent, uncovered = run.epsilon(), uncovered_notes(notes)
    made_by = {
        "Software": f"equidp {versions()['equidp']}, method {method}",
        "SHA-256 of the weights": weights,
        **({} if kernel is None else {"SHA-256 of the kernel": kernel}),
    }
    stated = paragraphs(guarantee_sentences(run))
    blocks: list[Block] = [Callout(stated, warning=math.isinf(spent))]
    if math.isfinite(spent):
        blocks.append(Facts(facts_table(_guarantee_rows(run))))
        blocks += [Heading("What was released with noise"), Listing(_list_releases(run))]
    blocks += [
        Heading("What the guarantee does not cover"),
        Listing([*uncovered, *_LIMITS]),
        Heading("How to check it"),
        Facts(facts_table(made_by)),
        Paragraph(
            "equidp verify RUN compares files, ledger and card of the run, and computes epsilon again by "
            "dp-accounting alone. The card of the model has the metrics by group, all settings and limits.",
            small=True,
        ),
    ]
    return Document(f"Privacy label: {data}", blocks)


def _guarantee_rows(run: Run) -> list[tuple[str, str]]:
    """Names and values of the guarantee, in the order in which they are asked for."""
    facts, risk = run.facts, run.risk()
    units = "examples" if facts.rows is None else "people"
    of_unit = "one training example" if facts.rows is None else f"a person with at most {facts.rows:,} rows"
    rate, found = risk.false_positive_rates[0], risk.true_positive_rates[0]
    rows = [
        ("Protected unit", f"{of_unit}, added or removed"),
        ("Epsilon", f"{shown_epsilon(run.epsilon()):g} (accountant {run.accountant})"),
        ("Delta", f"{run.delta:g}"),
    ]
    if facts.num_examples is not None:
        rows.append(("Training examples" if facts.rows is None else "People", f"{facts.num_examples:,}"))
    if facts.levels:
        by_level = (f"{upper(each)} at {name}" for name, each in run.epsilon_by_level().items())
        rows.append(("Epsilon by what people chose", ", ".join(by_level)))
    elif any(isinstance(event, GroupedStepEvent) for event, _ in run.entries):
        by_group = (f"{name} {upper(each)}" for name, each in run.epsilon_by_group().items())
        rows.append(("Epsilon of each group", ", ".join(by_group)))
    if facts.steps_left:
        rows.append(("Epsilon of the whole plan", f"{run.planned_epsilon():.6g}"))
    if facts.rows is None:
        rows.append(("Epsilon of who owns several examples", owner_epsilons(run)))
    rows += [
        (
            f"Most that an attack finds of 1,000 {units} that were trained on",
            f"{per_thousand(found)}, where it wrongly names {1000 * rate:g} of 1,000 others",
        ),
        ("Trust model", "central: the organization that trained the model saw the rows"),
    ]
    return rows


def _list_releases(run: Run) -> list[str]:
    """Mechanisms with the number of their queries."""
    return [
        capitalise(f"{each.query}: {each.mechanism}, {count_text(each.times, each.noun)}.")
        for each in mechanisms(run)
    ]
