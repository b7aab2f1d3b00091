"""Model card: purpose of a model, its guarantee, its metrics by group, and how to check them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, final

from equidp._files import check_writable, write_whole
from equidp._provenance import kernel_digest, values_digest, versions, weights_digest
from equidp._validate import checked_path, unknown_name
from equidp.accounting.planned import costliest_mechanism, default_delta
from equidp.accounting.risk import value_names
from equidp.advice.chosen_plan import DEFAULT, SettingRow
from equidp.data.dataset import GroupedDataset
from equidp.display import Column, Noted, Table, shown_epsilon
from equidp.errors import DataError, SettingError, count_text
from equidp.evaluation.effects import Effect
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import STEP
from equidp.report.document import (
    Block,
    Callout,
    Code,
    Document,
    Facts,
    Heading,
    Listing,
    Paragraph,
    Tile,
    Tiles,
    paragraphs,
)
from equidp.report.effects import effect_blocks
from equidp.report.evaluation import evaluation_blocks, metric_tile, summary_sentence
from equidp.report.format import facts_table, number, upper
from equidp.report.guarantee import (
    EXCLUSIONS,
    Guarantee,
    guarantee_sentences,
    owner_sentence,
    per_thousand,
    release_text,
    replacement_text,
    risk_sentence,
)
from equidp.report.plan import plan_table
from equidp.training.initial_weights import FRESH, count_trained_on
from equidp.training.run import Run, RunFacts

STATEMENTS = {
    "intended_use": "intended use",
    "not_intended_for": "not intended for",
    "group_reason": "why the group columns were needed",
    "group_deletion": "when the group columns are deleted",
    "contact": "who answers for the model",
    "review_date": "date of review",
    "runs_tried": "number of runs tried on these data",
}
"""Names of statements by the people responsible for a model -> their headings on the card."""
_RISKS = value_names()
_WEIGHTS_HASH = "weights (SHA-256 of names and bytes of the state, in its order)"
_KERNEL_HASH = "equidp/kernel/*.py (SHA-256)"
_RANDOMNESS = {
    "SystemRandomness": "the operating system",
    "SeededRandomness": "a seed: for research only",
}


@final
@dataclass(frozen=True)
class CardContent:
    """Content of a card in addition to the run itself.

    Attributes:
        title: what the model predicts.
        data: name of the data.
        evaluation: evaluation of the model on held-out examples. None: the card has no metrics.
        notes: sentences on data preparation and on what epsilon does not cover (`DataSplit.notes`).
        statements: statements of the people responsible for the model, by a name in `STATEMENTS`.
        remarks: paragraphs of theirs.
        columns: facts about the columns and the test examples, by name.
        settings: further settings, by name.
        released: mean epsilon of the members of each group, if the run released it.
        too_noisy: groups whose released values are hidden by their noise.
        group_risks: by group, `Risk.values_by_name` of `IndividualReport.group_risks`.
        together: sentence on the spending of all runs in the ledger.
        hashes: checksum of the weights' file by its name. Empty: of the weights in memory.
        plan: every setting with its origin. Empty: the card lists the settings of the run.
        effects: effects of the columns of a table.
        dates: names of the columns that hold days since 1 January 2000.
    """

    title: str = ""
    data: str = ""
    evaluation: Evaluation | None = None
    notes: Sequence[str] = ()
    statements: Mapping[str, object] = field(default_factory=dict)
    remarks: str = ""
    columns: Mapping[str, object] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    released: Mapping[str, float | Noted] = field(default_factory=dict)
    too_noisy: Sequence[str] = ()
    group_risks: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    together: str = ""
    hashes: Mapping[str, str] = field(default_factory=dict)
    plan: Sequence[SettingRow] = ()
    effects: Sequence[Effect] = ()
    dates: Sequence[str] = ()


def write_card(
    run: Run,
    *paths: str | os.PathLike[str],
    test: GroupedDataset | None = None,
    evaluation: Evaluation | None = None,
    data: str = "",
    title: str = "",
    notes: Sequence[str] = (),
    statements: Mapping[str, object] | None = None,
) -> None:
    """Write the model card of a run: its purpose, its guarantee, and its metrics by group.

    Args:
        run: run from `Trainer.fit` or `Trainer.run`.
        paths: one or several paths, each ending in .html or .md.
        test: held-out examples for metrics by group. None: the card has no metrics.
        evaluation: evaluation of the model on a test set, instead of `test`.
        data: name of the data.
        title: what the model predicts.
        notes: sentences on data preparation and on what epsilon does not cover (`DataSplit.notes`).
        statements: statements by the people responsible for the model: intended_use, not_intended_for,
            group_reason, group_deletion, contact, review_date or runs_tried. The card names those that are
            missing.

    Raises:
        SettingError: a path has another ending or cannot be written, or a statement is unknown.
        DataError: the test set is not a GroupedDataset, has other classes than the training data, or shares
            rows with it, or the evaluation is for another model.

    Example:
        >>> import equidp, torch
        >>> inputs, labels = torch.randn(80, 3), torch.arange(80) % 2
        >>> data = equidp.GroupedDataset(inputs, labels, labels, ("a", "b"), ("no", "yes"))
        >>> train, test = data.subset(torch.arange(40)), data.subset(torch.arange(40, 80))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, train, batch_size=10, epochs=1,
        ...                          noise_multiplier=1.0, delta=1e-3)
        >>> run = trainer.fit()
        >>> path = getfixture("tmp_path") / "card.md"
        >>> equidp.write_card(run, path, test=test, title="Churn within a month")
        >>> "# Churn within a month" in path.read_text()
        True
    """
    if test is not None:
        run.check_test(test)
        evaluation = evaluation or evaluate(run.model, test)
    content = CardContent(title, data, evaluation, notes, statements or {})
    write_content(run, content, *paths)


def write_content(run: Run, content: CardContent, *paths: str | os.PathLike[str]) -> None:
    """Write a card of this content; see `write_card`."""
    targets = [checked_path(path=path) for path in paths]
    for target in targets:
        if target.suffix.lower() not in (".html", ".md"):
            raise SettingError(
                f"{os.fspath(target)!r} ends in {target.suffix!r}; a card ends in .html or .md.",
                field="path",
            )
        check_writable(target)
    for name in content.statements:
        if name not in STATEMENTS:
            raise unknown_name("statement", name, STATEMENTS)
    evaluation = content.evaluation
    if evaluation is not None:
        _check_evaluation(run, evaluation)
        content = replace(content, evaluation=evaluation.withholding())
    document = _document(run, content)
    for target in targets:
        page = target.suffix.lower() == ".html"
        text = document.to_html() if page else _front_matter(evaluation, run) + document.to_markdown()
        write_whole(target, text)


def _check_evaluation(run: Run, evaluation: Evaluation) -> None:
    """Reject another model's evaluation, and metrics of training examples, which are exact."""
    if evaluation.weights and evaluation.weights != values_digest(run.model):
        raise DataError(
            "the evaluation is of other weights than the run's: of another model, or of this one before it "
            "was trained further. Evaluate the run's model, or give its test set.",
            field="evaluation",
        )
    rows = evaluation.rows
    if rows is not None and math.isfinite(run.epsilon()) and (trained := count_trained_on(run.model, rows)):
        raise DataError(
            f"the model was trained on {trained:,} of the {len(rows):,} test rows. Metrics of training "
            "examples are exact, which epsilon does not cover, and a card is for sharing. Give examples that "
            "were held out.",
            field="test",
        )


def _document(run: Run, content: CardContent) -> Document:
    """Return the card as blocks; metrics of few people are withheld already."""
    guarantee, evaluation, facts = Guarantee.of(run), content.evaluation, run.facts
    positive = "" if evaluation is None else evaluation.positive
    title = content.title or (f"Model card: {content.data}" if content.data else "Model card")
    written = f"Model card, written {datetime.now(UTC):%Y-%m-%d} by equidp {versions()['equidp']}."
    return Document(
        title,
        [
            Paragraph(written, small=True),
            _tiles(guarantee, evaluation),
            Paragraph(summary_sentence(evaluation)),
            _guarantee_box(run, guarantee, content.together),
            *_statements(content),
            *evaluation_blocks(evaluation, facts),
            *_privacy_by_group(content),
            *effect_blocks(content.effects, facts.classes, positive, content.dates),
            *_data(run, guarantee, content),
            *_numbers(run, guarantee),
            *_settings(run, content),
        ],
    )


def _tiles(guarantee: Guarantee, evaluation: Evaluation | None) -> Tiles:
    """The three figures that a reader looks for first."""
    spent = Tile("none", "privacy guarantee", "trained without noise")
    if guarantee.private:
        each = "each training example" if guarantee.unit == "example" else "each person"
        epsilon = f"{shown_epsilon(guarantee.epsilon):g}"
        spent = Tile(epsilon, f"epsilon, at delta {guarantee.delta:g}", f"for {each}")
    tiles = [spent, metric_tile(evaluation)]
    if guarantee.examples is not None:
        tiles.append(Tile(f"{guarantee.examples:,}", f"{guarantee.units} trained on"))
    return Tiles(tiles)


def _guarantee_box(run: Run, guarantee: Guarantee, together: str) -> Callout:
    """The guarantee in words; what the ledger has spent follows its first sentence."""
    headline, *further = guarantee_sentences(guarantee)
    sentences = [headline, *filter(None, [together]), *further]
    if guarantee.private:
        sentences.append(risk_sentence(run.risk(), guarantee.units))
    return Callout([Heading("Guarantee"), *paragraphs(sentences)], warning=not guarantee.private)


def _statements(content: CardContent) -> Iterator[Block]:
    """Statements of the people responsible for the model, and which are missing."""
    stated = {
        label: str(value)
        for name, label in STATEMENTS.items()
        if (value := content.statements.get(name)) not in (None, "")
    }
    remarks = [" ".join(each.split()) for each in content.remarks.split("\n\n") if each.strip()]
    missing = [label for label in STATEMENTS.values() if label not in stated]
    yield Heading("Use and responsibility")
    if stated:
        yield Facts(facts_table(stated))
    yield from paragraphs(remarks)
    if stated or remarks:
        yield Paragraph(
            "Stated by the people who answer for this model; equidp checks none of it.", small=True
        )
    if missing:
        yield Paragraph(f"Not stated: {', '.join(missing)}.", small=True)


def _privacy_by_group(content: CardContent) -> Iterator[Block]:
    """Attack risk of each group, and released values; nothing if there are none."""
    risks, released = content.group_risks, content.released
    if not (risks or released or content.too_noisy):
        return
    yield Heading("Privacy by group")
    if len({tuple(values.items()) for values in risks.values()}) == 1:
        low, high, advantage = (next(iter(risks.values()))[name] for name in _RISKS)
        yield Paragraph(
            "By the bounds that the method released, an attack on a member of any group finds at most "
            f"{per_thousand(low)} of 1,000 members at 0.1% false positives and {per_thousand(high)} at 1%. "
            f"Its advantage is at most {upper(advantage)}."
        )
    elif risks:
        heads = ("found at 0.1% false positives", "found at 1%", "advantage")
        columns = [Column("group", "name"), *(Column(head, show=upper) for head in heads)]
        yield Paragraph(
            "The largest share of a group's members that any attack finds, by the bounds that the method "
            "released:"
        )
        yield Table(columns, [(name, *(each[risk] for risk in _RISKS)) for name, each in risks.items()])
    if released:
        yield Paragraph("Mean epsilon of a group's members, released with noise and counted in epsilon:")
        columns = [Column("group", "name"), Column("mean epsilon", show="{:.2g}".format)]
        yield Table(columns, [*released.items()])
    if content.too_noisy:
        yield Paragraph(f"No released value of {'; '.join(content.too_noisy)}: too few people for its noise.")


def _data(run: Run, guarantee: Guarantee, content: CardContent) -> list[Block]:
    """The training data, and what epsilon was not charged for."""
    facts = {
        "data": content.data,
        "groups": "; ".join(run.facts.groups),
        "classes": "; ".join(run.facts.classes),
        **content.columns,
    }
    return [
        Heading("Data, and what epsilon does not cover"),
        Facts(facts_table({name: value for name, value in facts.items() if value})),
        Listing(
            [
                *content.notes,
                owner_sentence(guarantee, run),
                *(EXCLUSIONS[name] for name in guarantee.exclusions),
                "The number of training examples of each group is not shown: no epsilon was charged for it.",
            ]
        ),
    ]


def _numbers(run: Run, guarantee: Guarantee) -> Iterator[Block]:
    """Parameters of the guarantee, and code that recomputes epsilon."""
    yield Heading("For reviewers: the guarantee in numbers")
    yield Facts(facts_table(_parameters(run, guarantee), "parameter"))
    yield Paragraph(
        "docs/guarantees.md of equidp states the guarantee with its assumptions, and the files of each kind "
        "of run that hold it."
    )
    if guarantee.private:
        yield Paragraph("To recompute epsilon with only dp-accounting (pip install dp-accounting):")
        yield Code(_recomputing_code(run))
        yield Callout(
            [
                Heading("For an expert determination under HIPAA, 45 CFR 164.514(b)(1)", 3),
                Paragraph(
                    "This card is not the determination. An expert determines whether the risk of "
                    "identifying a person is very small for the recipients to be expected, and documents "
                    "method and result. For that, the card gives the bounds on any attack, what was "
                    "released, what epsilon does not cover, and the smallest group that a metric is about."
                ),
            ]
        )


def _settings(run: Run, content: CardContent) -> Iterator[Block]:
    """Settings with their origins, versions and hashes, each once."""
    yield Heading("Settings, versions and hashes")
    chosen = [row for row in content.plan if row.origin != DEFAULT]
    if chosen:
        yield plan_table(chosen)
        yield Paragraph("All other settings have their defaults; run.json lists them.", small=True)
    yield Facts(
        facts_table(
            {
                **_run_settings(run.facts, with_plan=not chosen),
                **content.settings,
                **versions(),
                _KERNEL_HASH: kernel_digest(),
                **(content.hashes or {_WEIGHTS_HASH: weights_digest(run.model)}),
            }
        )
    )


def _front_matter(evaluation: Evaluation | None, run: Run) -> str:
    """Return YAML that hosts of models, such as Hugging Face, read; the publisher sets the licence."""
    private = math.isfinite(run.epsilon())
    tags = ["- pytorch", "- fairness", *(["- differential-privacy"] if private else [])]
    metrics = [] if evaluation is None else ["metrics:", f"- {json.dumps(evaluation.metric.name)}"]
    lines = ["license: unknown", "library_name: equidp", "tags:", *tags, *metrics]
    return "\n".join(["---", *lines, "---", "", ""])


def _run_settings(facts: RunFacts, *, with_plan: bool) -> dict[str, Any]:
    """Return known facts about a run by name; with or without what its plan says."""
    settings: dict[str, Any] = {
        "gradient engine": facts.engine,
        "randomness": _RANDOMNESS.get(facts.randomness, f"given to the trainer: {facts.randomness}"),
    }
    if with_plan:
        labelled = {each.metadata["label"]: each.name for each in fields(facts) if "label" in each.metadata}
        of_run = {label: getattr(facts, name) for label, name in labelled.items()}
        of_plan = {} if facts.plan is None else facts.plan.card_options
        settings = {**facts.method, **of_run, **settings, **of_plan}
    return {
        name: ", ".join(f"{key} {each:g}" for key, each in value.items())
        if isinstance(value, Mapping)
        else value
        for name, value in settings.items()
        if value not in (None, "")
    }


def _parameters(run: Run, guarantee: Guarantee) -> list[tuple[str, str]]:
    unit, spent = guarantee.unit, guarantee.epsilon
    fresh = run.facts.start.weights == FRESH
    rows = [
        ("epsilon", f"{spent:.6g} ({run.accountant})" if guarantee.private else number(spent)),
        *_epsilon_of_steps_taken(run),
        *((f"epsilon of group {name}", f"{each:.6g}") for name, each in guarantee.by_group.items()),
        ("delta", _delta_text(guarantee)),
        ("neighbouring datasets", f"differ by one {unit}, added or removed"),
        (f"one {unit} replaced by another", replacement_text(guarantee)),
        ("initial weights", "fresh: independent of the data" if fresh else "given to the trainer"),
        ("sampling", f"Poisson: each {unit} joins each step's sample independently"),
    ]
    if guarantee.private:
        others = [name for name in ("pld", "rdp") if name != run.accountant]
        rows += [(f"epsilon by {name}", f"{epsilon(run.entries, run.delta, name):.6g}") for name in others]
    rows += [(release_text(event, count), str(event)) for event, count in guarantee.releases]
    return rows


def _epsilon_of_steps_taken(run: Run) -> list[tuple[str, str]]:
    """Epsilon of the steps that a run took before it ended early, or empty for others."""
    if not run.not_taken or math.isinf(run.epsilon()):
        return []
    taken, planned = (
        sum(count for event, count in entries if event.name == STEP) for entries in (run.spent, run.entries)
    )
    why = f"for {taken:,} of {count_text(planned, STEP)}; holds only if no result decided when to stop"
    return [("epsilon of the steps taken", f"{run.epsilon_of_steps_taken():.6g}: {why}")]


def _delta_text(guarantee: Guarantee) -> str:
    """Delta and the rule that chose it, if known."""
    delta, examples = guarantee.delta, guarantee.examples
    if examples is None:
        return f"{delta:g}"
    usual = delta == default_delta(examples)
    chosen = "a tenth of 1/n, rounded down to a power of ten" if usual else "set for this run"
    return f"{delta:g}: {chosen}, where n = {examples:,}"


def _recomputing_code(run: Run) -> str:
    """Python code that recomputes epsilon with only dp-accounting."""
    event = costliest_mechanism(run.entries, run.delta)
    return (
        "from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, "
        "SelfComposedDpEvent\n"
        "from dp_accounting.pld import PLDAccountant\n\n"
        f"event = {event}\n"
        f"print(PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon({run.delta!r}))"
    )
