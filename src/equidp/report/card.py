"""Model card: what was trained, what is guaranteed, what it does to each group, and how to check it."""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from equidp._files import check_writable, write_whole
from equidp._provenance import kernel_digest, values_digest, versions, weights_digest
from equidp._validate import checked_path, unknown_name
from equidp.accounting import run_event
from equidp.accounting.planned import COUNTS, PREPROCESSING, default_delta
from equidp.accounting.replacement import replacement_epsilon
from equidp.accounting.risk import value_names
from equidp.advice.chosen_plan import SettingRow
from equidp.data.dataset import GroupedDataset
from equidp.data.shared_rows import RowDigests
from equidp.data.views import Views
from equidp.display import Column, Table
from equidp.errors import DataError, SettingError, count_text
from equidp.evaluation.effects import Effect
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.evaluation.small_cells import FEWEST
from equidp.kernel.epsilon import costliest_entries, epsilon
from equidp.kernel.ledger import Event, GroupedStepEvent, ReleaseEvent
from equidp.report.document import (
    Block,
    Callout,
    Code,
    Document,
    Facts,
    Heading,
    Listing,
    Paragraph,
    paragraphs,
)
from equidp.report.effects import effect_blocks
from equidp.report.evaluation import (
    blind_spot_sentences,
    gap_sentences,
    groups_table,
    interval_sentence,
    measure_sentences,
    metrics_table,
    risk_sentences,
    summary_sentence,
    withheld_sentences,
)
from equidp.report.figures import risk_figure
from equidp.report.format import facts_table, number, upper
from equidp.report.guarantee import (
    attack_risk_sentences,
    files_to_review,
    guarantee_sentences,
    privacy_unit,
    several_rows_sentence,
)
from equidp.report.plan import plan_blocks
from equidp.training.initial_weights import FRESH, Start, count_trained_on
from equidp.training.run import Run, RunFacts

_RISKS = value_names()
_WEIGHTS_HASH = "weights (SHA-256 of names and bytes of the state, in its order)"
_KERNEL_HASH = "equidp/kernel/*.py (SHA-256)"
_RANDOMNESS = {
    "SystemRandomness": "the operating system",
    "SeededRandomness": "a seed: for research only",
}
_LIMITS = (
    "The guarantee covers this training run. Other runs on the same data, and settings chosen by looking at "
    "their results, spend more.",
    "The number of examples or people, the names of groups and classes, and all settings count as public.",
    "Every metric is over at least {fewest}, and with two classes over as many of each. Smaller groups count "
    "in no metric, so that no difference between two metrics reveals them. Evaluations of files that overlap "
    "can still differ by a few people.",
    "Metrics are exact for the test examples, which the guarantee does not cover. Intervals account for the "
    "number of test examples only, not for the variation between training runs.{rows}",
    "Noisy sums are rounded to about a thousandth of their noise, so the gaps between floating-point numbers "
    "could reveal something only beyond 8 standard deviations of noise. Timing and memory of the machine are "
    "not covered.",
    "What holds for the test examples may not hold for people unlike them.",
)
_ROWS_OF_PEOPLE = (
    " They assume independent test examples, and are too narrow where the rows of one person are alike."
)


def cost_sentence(method: str) -> str:
    """Sentence on what a private run does not measure, the costs of its model and of privacy, and what does.

    >>> cost_sentence("dpsgd").rpartition("equidp ")[2]
    'compare DATA --methods dpsgd.'
    """
    return (
        "What the model and privacy cost each group is not measured here: that takes models without privacy "
        "of the same rows. Where these may be read without privacy, such as public or test data, the same "
        f"options show it by equidp compare DATA --methods {method}."
    )


def write_card(
    run: Run,
    *paths: str | os.PathLike[str],
    test: GroupedDataset | None = None,
    evaluation: Evaluation | None = None,
    data: str = "",
    notes: Sequence[str] = (),
    released: Mapping[str, float] | None = None,
    group_risks: Mapping[str, Mapping[str, float]] | None = None,
    details: Mapping[str, Any] | None = None,
    composition: str = "",
    hashes: Mapping[str, str] | None = None,
    too_noisy: Sequence[str] = (),
    remarks: str = "",
    audited: Mapping[str, Sequence[str]] | None = None,
    plan: Sequence[SettingRow] = (),
    effects: Sequence[Effect] = (),
) -> None:
    """Write the model card of a run: what the model is, what it guarantees, and what it does to each group.

    Args:
        run: from `Trainer.fit` or `Trainer.run`.
        paths: one or several, each ending in .html or .md.
        test: examples that metrics by group are computed on, held out; None: the card has no metrics.
        evaluation: of the model on a test set, if the caller has it already; then `test` can be left out.
        data: name of the data.
        notes: sentences on how the data was prepared, and what epsilon does not cover (`DataSplit.notes`).
        released: individual privacy that was released, by name, such as the mean of
            `IndividualReport.release_mean`. It cost privacy, so take the run after it: `trainer.run()`.
        group_risks: by group, `Risk.values_by_name` of `IndividualReport.group_risks`.
        details: further plain values, listed with the settings.
        composition: a sentence on what this run and others in one budget have spent together; "" without a
            budget.
        hashes: checksum of the weights' file by what it is of; None: of the weights in memory.
        too_noisy: groups whose released values say nothing beside their noise.
        remarks: what the people who answer for the model say of purpose, access or retention: paragraphs.
        audited: source files behind the guarantee of releases, by name.
        plan: every setting with its origin; empty: the card lists the settings of the run without origins.
        effects: of the columns of a table, from `equidp.evaluation.effects.column_effects`.

    Raises:
        SettingError: another ending, a path that cannot be written, releases that the run does not count, or
            risks of groups that it does not have.
        DataError: the test set is no GroupedDataset, has other classes than the training data, or shares
            rows with it.

    Example:
        >>> import equidp, torch
        >>> inputs, labels = torch.randn(80, 3), torch.arange(80) % 2
        >>> data = equidp.GroupedDataset(inputs, labels, labels, ("a", "b"), ("no", "yes"))
        >>> train, test = data.subset(torch.arange(40)), data.subset(torch.arange(40, 80))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, train, policy=equidp.DPSGD(), batch_size=10, epochs=1,
        ...                          noise_multiplier=1.0, delta=1e-3)
        >>> run = trainer.fit()
        >>> path = getfixture("tmp_path") / "card.md"
        >>> equidp.write_card(run, path, test=test, data="made up")
        >>> "# Model card: made up" in path.read_text()
        True
    """
    targets = [checked_path(path=path) for path in paths]
    for target in targets:
        if target.suffix.lower() not in (".html", ".md"):
            raise SettingError(
                f"{os.fspath(target)!r} ends in {target.suffix!r}; a card ends in .html or .md.",
                field="path",
            )
        check_writable(target)
    if test is not None:
        run.check_test(test)
        _check_held_out(run, test.row_digests, "test")
    if evaluation is not None:
        _check_evaluation(evaluation, run)
    if released:
        _check_paid_for(released, run)
    _check_group_risks(group_risks or {}, run)
    if evaluation is None and test is not None:
        evaluation = evaluate(run.model, test)
    found = None if evaluation is None else evaluation.withholding()
    spent, facts, version = run.epsilon(), run.facts, versions()["equidp"]
    paid = [event.name for event, _ in run.entries if isinstance(event, ReleaseEvent)]
    files = files_to_review(run, paid, in_budget=bool(composition), further=audited)
    public = {
        "Dataset": data,
        "Groups": "; ".join(facts.groups or (() if test is None else test.group_names)),
        "Classes": "; ".join(facts.classes or (() if test is None else test.class_names)),
    }
    settings = {
        **_settings(facts, with_plan=not plan),
        **(details or {}),
        **versions(),
        _KERNEL_HASH: kernel_digest(),
        **(hashes or {_WEIGHTS_HASH: weights_digest(run.model)}),
    }
    document = Document(
        f"Model card: {data}" if data else "Model card",
        [
            Paragraph(f"Made {datetime.now(UTC):%Y-%m-%d} by equidp {version}.", small=True),
            Paragraph(summary_sentence(found)),
            _guarantee(run, composition),
            *_evaluation(found, facts),
            *effect_blocks(effects, facts.classes, "" if found is None else found.positive),
            *_data(public, notes),
            *_numbers(run, spent, files, version),
            *_individual(released or {}, too_noisy, group_risks or {}),
            Heading("Limits"),
            Listing(_limits(run, found)),
            *_remarks(remarks),
            *(plan_blocks(plan) if plan else []),
            Heading("Settings, versions and hashes"),
            Facts(facts_table(settings)),
        ],
    )
    for target in targets:
        page = target.suffix.lower() == ".html"
        text = document.to_html() if page else _front_matter(found, spent) + document.to_markdown()
        write_whole(target, text)


def _front_matter(found: Evaluation | None, spent: float) -> str:
    """Return YAML that hosts of models, such as Hugging Face, read; the publisher sets the licence."""
    tags = ["- pytorch", "- fairness", *(["- differential-privacy"] if math.isfinite(spent) else [])]
    metrics = [] if found is None else ["metrics:", f"- {json.dumps(found.metric.name)}"]
    lines = ["license: unknown", "library_name: equidp", "tags:", *tags, *metrics]
    return "\n".join(["---", *lines, "---", "", ""])


def _check_evaluation(evaluation: Evaluation, run: Run) -> None:
    """Refuse an evaluation of another model, or on the training data."""
    if evaluation.weights and evaluation.weights != values_digest(run.model):
        raise DataError(
            "the evaluation is of other weights than the run's: of another model, or of this one before it "
            "was trained further. Evaluate the run's model, or give its test set.",
            field="evaluation",
        )
    _check_held_out(run, evaluation.rows, "evaluation")


def _check_held_out(run: Run, rows: RowDigests | None, field: str) -> None:
    """Refuse metrics of training examples, which are exact."""
    if rows is None or math.isinf(run.epsilon()):
        return
    if trained := count_trained_on(run.model, rows):
        raise DataError(
            f"{field}: the model was trained on {trained:,} of its {len(rows):,} rows. Metrics of training "
            "examples are exact, which epsilon does not cover, and a card is for sharing. Give examples that "
            "were held out.",
            field=field,
        )


def _guarantee(run: Run, composition: str) -> Callout:
    """The guarantee in words; `composition` follows its first sentence."""
    headline, *further = guarantee_sentences(run)
    sentences = [headline, *filter(None, [composition]), *further, *attack_risk_sentences(run)]
    return Callout([Heading("Guarantee"), *paragraphs(sentences)], warning=math.isinf(run.epsilon()))


def _evaluation(found: Evaluation | None, facts: RunFacts) -> Iterator[Block]:
    """Metrics by group, and what they hide and withhold."""
    yield Heading("Evaluation by group")
    if found is None:
        yield Paragraph("No test set was given.")
        return
    yield from paragraphs(withheld_sentences(found), small=True)
    if not found.groups.empty:
        yield groups_table(found.groups)
        yield Paragraph(interval_sentence(found), small=True)
        risks = risk_figure(found)
        if risks is not None:
            yield risks
        if not found.recalls.empty:
            yield Heading("Recall: share of each class's examples that the model finds", 3)
            yield groups_table(found.recalls)
        metrics = metrics_table(found)
        if metrics is not None:
            yield Heading("Ranking, predicted classes and predicted risks", 3)
            yield metrics
            yield from paragraphs(measure_sentences(found), small=True)
    yield from paragraphs([*blind_spot_sentences(found), *risk_sentences(found, facts)])
    yield from paragraphs(gap_sentences(found))


def _data(public: Mapping[str, str], notes: Sequence[str]) -> list[Block]:
    """Public facts on the data, and notes on how it was prepared."""
    hidden = "The number of training examples of each group is not shown: the guarantee would not cover it."
    known = [f"{name}: {value}" for name, value in public.items() if value]
    return [Heading("Data"), Listing([*known, hidden, *notes])]


def _numbers(run: Run, spent: float, files: Mapping[str, str], version: str) -> Iterator[Block]:
    """Parameters of the guarantee, code that recomputes epsilon, and files that an auditor reads."""
    yield Heading("The guarantee in numbers")
    yield Facts(facts_table(_parameters(run, spent), "parameter"))
    if math.isfinite(spent):
        yield Paragraph("To recompute epsilon with dp-accounting alone:")
        yield Code(_recomputing_code(run))
    yield Paragraph(
        f"For an audit: the guarantee of this run rests on these files of src/equidp/ in version {version}. "
        "docs/guarantees.md lists the assumptions behind them."
    )
    yield Facts(facts_table(files, "for", "files"))


def _individual(
    released: Mapping[str, float],
    too_noisy: Sequence[str],
    group_risks: Mapping[str, Mapping[str, float]],
) -> Iterator[Block]:
    """Released values on the privacy of groups' examples, and bounds on attacks on members of each group."""
    yield Heading("Individual privacy")
    if released:
        yield Paragraph("Released with noise, and charged to the guarantee above:")
        yield Listing([f"{name}: {value:.4g}" for name, value in released.items()])
    else:
        yield Paragraph(
            "Nothing was released about the privacy of single examples or groups; every example has at least "
            "the guarantee above."
        )
    if too_noisy:
        yield Paragraph(
            f"No released value of {'; '.join(too_noisy)}: too few people for the noise of the release."
        )
    if group_risks:
        yield Paragraph(
            "Bounds on what any attack achieves against a member of each group, from the clipping bounds "
            "that the method released during this training:"
        )
        yield _group_risk_table(group_risks)


def _limits(run: Run, found: Evaluation | None) -> list[str]:
    """Limits of the guarantee and of the metrics."""
    by_person = found is not None and found.people is not None
    fewest = f"{FEWEST} {'people' if by_person else 'test examples'}"
    rows = _ROWS_OF_PEOPLE if by_person else ""
    return [several_rows_sentence(run), *(each.format(fewest=fewest, rows=rows) for each in _LIMITS)]


def _remarks(remarks: str) -> list[Block]:
    """Paragraphs that the people responsible for the model wrote; empty without any."""
    texts = [" ".join(each.split()) for each in remarks.split("\n\n") if each.strip()]
    if not texts:
        return []
    return [
        Heading("Notes of the people responsible for this model"),
        Paragraph("Given with --card-notes; equidp checks nothing here.", small=True),
        *paragraphs(texts),
    ]


def _check_group_risks(group_risks: Mapping[str, Mapping[str, float]], run: Run) -> None:
    """Refuse risks of groups that the run does not have, or others than a report gives."""
    unknown = [name for name in group_risks if run.facts.groups and name not in run.facts.groups]
    if unknown:
        raise unknown_name("group", unknown[0], run.facts.groups)
    for name, values in group_risks.items():
        if not isinstance(values, Mapping) or {*values} != {*_RISKS}:
            raise SettingError(
                f"group_risks of {name!r} are {values!r}; expected {', '.join(_RISKS)}: "
                "risk.values_by_name() of IndividualReport.group_risks().",
                field="group_risks",
            )


def _check_paid_for(released: Mapping[str, float], run: Run) -> None:
    """Check that the run counts a release beside its steps, at sample rate 1, and not one of another kind."""
    others = (PREPROCESSING, COUNTS)
    if not any(
        getattr(event, "sample_rate", 0) == 1
        and event != run.facts.event
        and getattr(event, "name", "") not in others
        for event, _ in run.entries
    ):
        raise SettingError(
            f"released={dict(released)}; expected a run that counts this release, and this one was made "
            "before it. Write the card of trainer.run()."
        )


def _start_text(start: Start) -> str:
    """Origin of the initial weights, for the table of parameters."""
    if start.weights == FRESH:
        return "fresh: independent of the data"
    return "given; if they were trained on this data, the epsilon of that training must be added"


def _settings(facts: RunFacts, *, with_plan: bool) -> dict[str, Any]:
    """Known facts of a run, as names and values; with or without the options of its plan."""
    labelled = {each.metadata["label"]: each.name for each in fields(facts) if "label" in each.metadata}
    settings = {label: getattr(facts, name) for label, name in labelled.items()}
    settings["randomness"] = _RANDOMNESS.get(facts.randomness, f"given to the trainer: {facts.randomness}")
    if facts.views != Views():
        settings["views of each image"] = f"{facts.views.count}, by {facts.views.augmentation}"
    of_plan = facts.plan.card_options if with_plan and facts.plan is not None else {}
    of_method = facts.method
    if facts.rows is not None:
        of_method["people in the training data"] = settings.pop("training examples")
    whole = {**of_method, **settings, **{label: _option_text(value) for label, value in of_plan.items()}}
    return {name: value for name, value in whole.items() if value not in (None, "")}


def _option_text(value: Any) -> Any:
    """Value of an option of training as the card has it: numbers by name as one text."""
    if not isinstance(value, Mapping):
        return value
    return ", ".join(f"{name} {number:g}" for name, number in value.items())


def _group_risk_table(risks: Mapping[str, Mapping[str, float]]) -> Table:
    heads = ("true-positive rate at .1% false positives", "at 1%", "advantage", "AUC")
    columns = [Column("group", "name"), *(Column(head, show=upper) for head in heads)]
    return Table(columns, [(name, *(values[each] for each in _RISKS)) for name, values in risks.items()])


def _parameters(run: Run, spent: float) -> list[tuple[str, str]]:
    rows = [
        ("epsilon", number(spent) if math.isinf(spent) else f"{spent:.6g} ({run.accountant})"),
        *_planned_epsilon(run, spent),
        *_epsilon_of_groups(run),
        ("delta", _delta_text(run)),
        ("neighbouring datasets", f"differ by one {privacy_unit(run.facts)}, added or removed"),
        (f"one {privacy_unit(run.facts)} replaced by another", _replacement_text(run, spent)),
        ("initial weights", _start_text(run.facts.start)),
        ("sampling", f"Poisson: each {privacy_unit(run.facts)} joins each step's sample independently"),
    ]
    if math.isfinite(spent):
        others = [name for name in ("pld", "rdp") if name != run.accountant]
        rows += [(f"epsilon by {name}", f"{epsilon(run.entries, run.delta, name):.6g}") for name in others]
    counts: Counter[Event] = Counter()
    for event, steps in run.entries:
        counts[event] += steps
    for event, steps in counts.items():
        what = count_text(steps, "step")
        if isinstance(event, ReleaseEvent):
            what = f"{count_text(steps, 'release')} of {event.name}"
        rows.append((what, str(event)))
    return rows


def _epsilon_of_groups(run: Run) -> list[tuple[str, str]]:
    """Epsilon of each group, of a run whose rates or bounds differ by it; empty for others."""
    if not any(isinstance(event, GroupedStepEvent) for event, _ in run.entries):
        return []
    return [(f"epsilon of group {name}", f"{found:.6g}") for name, found in run.epsilon_by_group().items()]


def _planned_epsilon(run: Run, spent: float) -> list[tuple[str, str]]:
    """Epsilon of the whole plan, of a run that ended before it; empty for others."""
    left = run.facts.steps_left
    if not left or math.isinf(spent):
        return []
    why = f"with the {count_text(left, 'step')} not taken; promised where results decided when to end"
    return [("epsilon of the whole plan", f"{run.planned_epsilon():.6g}: {why}")]


def _delta_text(run: Run) -> str:
    """Delta and the rule that chose it, if known."""
    examples = run.facts.num_examples
    if examples is None:
        return f"{run.delta:g}"
    usual = run.delta == default_delta(examples)
    chosen = "a tenth of 1/n, rounded down to a power of ten" if usual else "set for this run"
    unit = privacy_unit(run.facts)
    return (
        f"{run.delta:g}: {chosen}, where n = {examples:,}. Publishing one {unit} whole, drawn at random, "
        f"would be private at delta 1/n = {1 / examples:.2g}"
    )


def _replacement_text(run: Run, spent: float) -> str:
    """Text on epsilon for the replacement of one example or person."""
    if math.isinf(spent):
        return "no guarantee"
    found = replacement_epsilon(run.entries, run.delta, run.accountant)
    shown = f"epsilon at most {upper(found)}" if math.isfinite(found) else "no epsilon below 1,200 is known"
    return f"{shown} at the same delta, as removing one and adding one"


def _recomputing_code(run: Run) -> str:
    """Python that recomputes epsilon with dp-accounting alone."""
    event = run_event(costliest_entries(run.entries, run.delta, "pld"))  # of the group, for this accountant
    return (
        "from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, "
        "SelfComposedDpEvent\n"
        "from dp_accounting.pld import PLDAccountant\n\n"
        f"event = {event}\n"
        f"print(PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon({run.delta!r}))"
    )
