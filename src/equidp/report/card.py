"""The model card: what was trained, what is guaranteed, what it does to each group, and how to check it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from equidp._files import check_writable, write_whole
from equidp._provenance import versions, weights_digest
from equidp.accounting import run_event
from equidp.data.dataset import ALL, GroupedDataset
from equidp.errors import SettingError
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from equidp.report.figures import for_card, judged
from equidp.report.format import counted, number, points, upper
from equidp.report.render import filled
from equidp.training.run import Run, RunFacts
from equidp.training.start import FRESH, Start

_FEWEST = 5  # test examples that the figures of a card are computed from
_ROWS = (2, 4, 8)  # examples of one person that epsilon is stated for
_STRONG, _WEAK = 1.0, 7.0  # epsilons: factors of about 2.7 and 1,000 on the odds

LIMITS = (
    "It covers this training run. Other runs on the same data, and settings chosen by looking at their "
    "results, add to it.",
    "The number of examples, the names of groups and classes, and all settings count as public.",
    f"No figures are shown of fewer than {_FEWEST} test examples, since they would describe a few people. "
    "Differences between figures that are shown can still reveal something about them.",
    "Metrics are exact for the test examples, which the guarantee does not cover. Intervals account for the "
    "number of test examples only, not for what another training run would give.",
    "Noisy sums are rounded to about a thousandth of their noise, so the gaps between floating-point numbers "
    "could reveal something only beyond 8 standard deviations of noise. Timing and memory of the machine are "
    "not covered.",
    "What holds for the test examples may not hold for people unlike them.",
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
    releases: Sequence[tuple[str, StepEvent]] = (),
) -> None:
    """Writes the model card of a run: what the model is, what it guarantees, and what it does to each group.

    Args:
        run: from `Trainer.fit` or `Trainer.run`.
        paths: one or several, each ending in .html or .md.
        test: what metrics by group are computed on; None: the card has none.
        evaluation: of the model on a test set, if the caller has it already; then `test` can be left out.
        data: name of the data.
        notes: sentences on how the data was prepared, and what epsilon does not cover (`DataSplit.notes`).
        released: individual privacy that was released, by name, such as the mean of
            `IndividualReport.release_mean`. It cost privacy, so take the run after it: `trainer.run()`.
        group_risks: by group, the figures of `IndividualReport.group_risks`.
        details: further plain values, listed with the settings.
        releases: (name, event) of each release that the run paid for beside its steps.

    Raises:
        SettingError: another ending, a path that cannot be written, or releases that the run does not count.
        DataError: the test set is no GroupedDataset, or has other classes than the training data.

    Example:
        >>> import equidp, torch
        >>> inputs, labels = torch.randn(40, 3), torch.arange(40) % 2
        >>> train = equidp.GroupedDataset(inputs, labels, labels, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, train, policy=equidp.DPSGD(), batch_size=10, epochs=1,
        ...                          noise_multiplier=1.0, delta=1e-3)
        >>> run = trainer.fit()
        >>> path = getfixture("tmp_path") / "card.md"
        >>> equidp.write_card(run, path, test=train, data="made up")
        >>> path.read_text().splitlines()[0]
        '# Model card: made up'
    """
    targets = [Path(path) for path in paths]
    for target in targets:
        if target.suffix.lower() not in (".html", ".md"):
            raise SettingError(
                f"{os.fspath(target)!r} ends in {target.suffix!r}; a card ends in .html or .md."
            )
        check_writable(target)
    if test is not None:
        run.check_test(test)
    if released:
        _check_paid_for(released, run)
    if evaluation is None and test is not None:
        evaluation = evaluate(run.model, test)
    found = None if evaluation is None else evaluation.withholding(_FEWEST)
    spent, facts = run.epsilon(), run.facts
    values = {
        "title": f"Model card: {data}" if data else "Model card",
        "data": data,
        "private": math.isfinite(spent),
        "guarantee": [*guarantee_in_words(run), *risk_in_words(run)],
        "summary": _summary(found) + judged(found),
        "parameters": _parameters(run, spent, releases or _of_individual_privacy(run, released)),
        "recompute": _recompute(run),
        "evaluation": found,
        **for_card(found),
        "fewest": _FEWEST,
        "groups": facts.groups or (() if test is None else test.group_names),
        "classes": facts.classes or (() if test is None else test.class_names),
        "notes": notes,
        "released": released or {},
        "group_risks": {
            name: [upper(value) for value in figures.values()]
            for name, figures in (group_risks or {}).items()
        },
        "limits": (_of_several_rows(run), *LIMITS),
        "settings": {**_settings(facts), **(details or {})},
        "versions": versions(),
        "hashes": {"model weights (SHA-256)": weights_digest(run.model)},
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }
    for target in targets:
        write_whole(target, filled(f"card{target.suffix.lower()}", **values).encode())


def _check_paid_for(released: Mapping[str, float], run: Run) -> None:
    """Raises unless the run counts a release beside its steps: it reads every example, at sample rate 1."""
    events = {event for event, _ in run.entries}
    if len(events) == 1 or all(event.sample_rate != 1 for event in events):
        raise SettingError(
            f"released={dict(released)}, but this run was taken before the release was paid for; write the "
            "card of trainer.run()."
        )


def guarantee_in_words(run: Run) -> list[str]:
    """The guarantee in sentences for readers who do not know epsilon."""
    spent, delta = run.epsilon(), run.delta
    if math.isinf(spent):
        return ["No guarantee: this model was trained without noise and may reveal its training data."]
    shown = math.ceil(1000 * spent) / 1000  # never below the true value
    whatever, about = "anything done with the model reveals", "about whether any one example was in the data."
    if spent >= _WEAK:
        meaning = "what the model reveals can depend strongly on a single training example."
    elif spent > _STRONG:
        meaning = f"{whatever} only a limited amount {about}"
    else:
        meaning = f"{whatever} hardly anything {about}"
    factor = f"about {math.exp(spent):,.3g}" if spent < _WEAK else "more than 1,000, which promises little"
    sentences = [
        f"Training was ({shown:g}, {delta:g})-differentially private for each training example: {meaning}",
        "In odds: someone who has the model, and knows everything else, can change the odds on whether an "
        f"example was in the data by a factor of at most e^{shown:g}, {factor}, except with a probability of "
        f"about {delta:g}.",
        "This holds for every example of every group.",
    ]
    sentences += _start_in_guarantee(run)
    examples = run.facts.num_examples
    if examples is not None and delta >= 1 / examples:
        sentences.append(
            f"Warning: delta is not below 1/n, n = {examples:,} training examples: a method that publishes "
            "one whole example would count as private too."
        )
    return sentences


def _start_in_guarantee(run: Run) -> list[str]:
    """What the guarantee leaves out where weights or optimizer were trained before."""
    start = run.facts.start
    if start.optimizer_state:
        return [
            "Warning: the optimizer came with state of earlier steps, such as momentum. If raw gradients of "
            "this data are in it, the guarantee does not hold."
        ]
    if not start.earlier:
        return []
    total = epsilon((*start.earlier, *run.entries), run.delta, run.accountant)
    before = "Warning: the weights were trained before by another run, which this epsilon does not count. "
    whom = "On this same data" if start.same_data else "For people who are in the data of both"
    if math.isinf(total):
        return [f"{before}{whom}, that was without privacy, and no guarantee holds."]
    return [f"{before}{whom}, all steps together give epsilon {math.ceil(1000 * total) / 1000:g}."]


def _start(start: Start) -> str:
    """Where the initial weights came from, for the table of parameters."""
    if start.earlier:
        return "of another run; see the warning above"
    if start.weights == FRESH:
        return "fresh: they hold nothing of the data"
    return "given; they must not come from this data unless that was paid for and is added"


def risk_in_words(run: Run) -> list[str]:
    """The guarantee as the most that any attack on the model achieves; empty where there is none."""
    if math.isinf(run.epsilon()):
        return []
    alone = ", of this training alone" if run.facts.start.earlier else ""
    return [
        f"As a risk{alone}, for any attack on what was released that is to tell whose examples were in the "
        f"data: {run.risk().in_words()} (.5 is guessing). These are bounds on all attacks, not the success "
        "of one."
    ]


def _of_several_rows(run: Run) -> str:
    """The epsilon of people who own several examples, as a rule more than as many times that of one."""
    single = "The guarantee is for one example. Someone who owns several is protected less"
    if math.isinf(run.epsilon()):
        return f"{single}."
    listed = ", ".join(f"{upper(run.epsilon(rows=rows))} with {rows}" for rows in _ROWS)
    return (
        f"{single}: epsilon is {listed} examples, at the same delta. equidp account --rows-per-person says "
        "it for other numbers."
    )


def _settings(facts: RunFacts) -> dict[str, Any]:
    """The facts of a run as names and values, without those that are not known."""
    settings = {
        "method": facts.method,
        **facts.method_settings,
        "training examples": facts.num_examples,
        "expected batch size": facts.expected_batch_size,
        "planned steps": facts.steps,
        "steps of the whole plan": facts.planned_steps,
        "optimizer": facts.optimizer,
        "learning rate": facts.learning_rate,
        "gradient engine": facts.engine,
        "randomness": "a seed: for research only" if facts.seeded else "the operating system",
    }
    return {name: value for name, value in settings.items() if value not in (None, "")}


def _summary(evaluation: Evaluation | None) -> str:
    if evaluation is None:
        return "No test set was given, so the card says nothing about accuracy."
    rows = evaluation.groups.set_index("group")
    if "rmse" in rows:
        overall = f"RMSE on {rows.at[ALL, 'count']:,} test examples: {number(rows.at[ALL, 'rmse'])}"
        errors = rows["rmse"].drop(ALL).dropna()
        ends = [f"{number(errors[at])} for group {at}" for at in (errors.idxmin(), errors.idxmax())]
        return f"{overall}, lowest {ends[0]}, highest {ends[1]}."
    accuracy = rows["accuracy"].drop(ALL).dropna()
    overall = f"Accuracy on {rows.at[ALL, 'count']:,} test examples: {points(rows.at[ALL, 'accuracy'])} %"
    if accuracy.empty:
        return f"{overall}."
    worst, best = accuracy.idxmin(), accuracy.idxmax()
    if accuracy[worst] == accuracy[best]:
        return f"{overall}, the same in every group."
    return (
        f"{overall}. Lowest for group {worst}, {points(accuracy[worst])} %, highest for {best}, "
        f"{points(accuracy[best])} %."
    )


def _of_individual_privacy(run: Run, released: Mapping[str, float] | None) -> list[tuple[str, StepEvent]]:
    """What paid for what was released, where the caller does not name it."""
    single = [event for event, steps in run.entries if event.sample_rate == 1 and steps == 1]
    return [("individual privacy", event) for event in single if released]


def _parameters(run: Run, spent: float, releases: Sequence[tuple[str, StepEvent]]) -> list[tuple[str, str]]:
    rows = [
        ("epsilon", number(spent) if math.isinf(spent) else f"{spent:.6g} ({run.accountant})"),
        ("delta", f"{run.delta:g}"),
        ("neighbouring datasets", "differ by one example, added or removed"),
        ("initial weights", _start(run.facts.start)),
        ("sampling", "Poisson: each example joins each step's sample independently"),
    ]
    if math.isfinite(spent):
        others = [name for name in ("pld", "rdp") if name != run.accountant]
        rows += [(f"epsilon by {name}", f"{epsilon(run.entries, run.delta, name):.6g}") for name in others]
    for event, steps in run.entries:
        names = [name for name, each in releases if each == event]
        noise = f"sample rate {event.sample_rate:.6g}, noise multiplier {event.noise_multiplier:.6g}"
        if event.statistics_noise is not None:
            noise += f", statistics noise {event.statistics_noise:.6g}"
        label = f"{counted(len(names), 'release')} of {' and '.join(names)}"
        rows.append((label if names else counted(steps, "step"), noise))
    return rows


def _recompute(run: Run) -> str:
    """Python that recomputes epsilon with dp-accounting alone."""
    return (
        "from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, "
        "SelfComposedDpEvent\n"
        "from dp_accounting.pld import PLDAccountant\n\n"
        f"event = {run_event(run.entries)}\n"
        f"print(PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon({run.delta!r}))"
    )
