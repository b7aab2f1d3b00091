"""Guarantee of a run: sentences for readers who do not know epsilon, and source files for auditors."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

from equidp.accounting.planned import COUNTS, INDIVIDUAL, PREPROCESSING
from equidp.display import shown_epsilon
from equidp.kernel.ledger import GroupedStepEvent
from equidp.report.format import upper
from equidp.training.run import Run, RunFacts

_ROWS = (2, 4, 8)  # examples of one person that epsilon is stated for
_STRONG, _WEAK = 1.0, 7.0  # epsilons: factors of about 2.7 and 1,000 on the odds
_RELEASE_FILES = ("accounting/planned.py", "runs/begin.py", "runs/train.py", "runs/releases/")
_FILES_OF_RELEASES: Mapping[str, Sequence[str]] = {
    PREPROCESSING: ("tables/release.py", "tables/private_encode.py"),
    COUNTS: ("tables/release.py",),
    INDIVIDUAL: ("individual/",),
}
"""Files of the releases that equidp defines. Estimators and loops of the user draw them too."""
_PEOPLE_FILES = ("data/people.py", "engines/units.py")
_ENGINE_FILES = {
    "GhostEngine": "engines/ghost.py, engines/layers/",
    "FunctionalEngine": "engines/functional.py",
}
_PROCESS_FILES = ("distributed/", "training/agreement.py")
_BUDGET_FILES = ("accounting/budget.py", "accounting/limit.py", "accounting/privacy_losses.py")
_BOUND_FILES = (
    *("accounting/risk.py", "accounting/replacement.py"),
    *("accounting/rows.py", "accounting/privacy_losses.py"),
)
_GROUP_FILES = ("accounting/groups.py", "accounting/calibration.py", "training/assemble.py")
_PROTOTYPE_FILES = (
    *("policies/prototypes.py", "policies/table.py"),
    *("models.py", "losses.py", "data/efficientnet.py"),
)


def privacy_unit(facts: RunFacts) -> str:
    """Return the unit of privacy: an example, or a person of several rows."""
    return "example" if facts.rows is None else "person"


def guarantee_sentences(run: Run) -> list[str]:
    """Return the guarantee in sentences for readers who do not know epsilon."""
    spent, delta, who = run.epsilon(), run.delta, privacy_unit(run.facts)
    if run.facts.rows is None:
        each, of_one, any_one = "training example", "a single training example", "an example"
    else:
        each, of_one, any_one = "person in the training data", "the rows of a single person", "a person"
    if math.isinf(spent):
        return ["No guarantee: this model was trained without noise and may reveal its training data."]
    shown = shown_epsilon(spent)
    whatever, about = "anything done with the model reveals", f"about whether any one {who} was in the data."
    if spent >= _WEAK:
        meaning = f"what the model reveals can depend strongly on {of_one}."
    elif spent > _STRONG:
        meaning = f"{whatever} only a limited amount {about}"
    else:
        meaning = f"{whatever} hardly anything {about}"
    factor = f"about {math.exp(spent):,.3g}" if spent < _WEAK else "more than 1,000, which promises little"
    sentences = [
        f"Training was ({shown:g}, {delta:g})-differentially private for each {each}: {meaning}",
        "In odds: someone who has the model, and knows everything else, can change the odds on whether "
        f"{any_one} was in the data by a factor of at most e^{shown:g}, {factor}, except with a probability "
        f"of about {delta:g}.",
        f"This holds for every {who} of every group.",
        *group_sentences(run),
    ]
    sentences += _start_sentences(run)
    examples = run.facts.num_examples
    if examples is not None and delta >= 1 / examples:
        sentences.append(
            f"Warning: delta is not below 1/n, n = {examples:,}: a method that publishes all of one {who} "
            "would count as private too."
        )
    return sentences


LARGER_EPSILON = (
    "Groups with a larger epsilon are easier to attack than if all groups had the same epsilon (arXiv "
    "2601.12922), and the model tends to be more accurate for them (arXiv 2605.07930)."
)
"""Sentence on what epsilons that differ do to the groups with the larger ones, as these papers found."""


def group_sentences(run: Run) -> list[str]:
    """Sentences on the epsilon of each group, and on what larger ones do; empty for equal groups."""
    if not any(isinstance(event, GroupedStepEvent) for event, _ in run.entries):
        return []
    epsilons = run.epsilon_by_group()
    if not epsilons:
        return []
    who = "examples" if run.facts.rows is None else "people"
    listed = ", ".join(f"{name} {upper(each)}" for name, each in epsilons.items())
    sentences = [
        f"By group, fixed before training, epsilon is at most: {listed}. The epsilon of a group follows from "
        f"the rate at which its {who} are drawn and from the bound of their gradients. Labels decide which "
        f"{who} are in it."
    ]
    if run.facts.rows is not None:
        sentences.append(
            "A person with rows in several groups counts in the one of them with the largest rate."
        )
    if epsilons_differ(epsilons.values()):
        sentences.append(
            f"{LARGER_EPSILON} equidp compare shows epsilon and accuracy of each group beside those of a run "
            "that treats groups equally."
        )
    return sentences


def epsilons_differ(epsilons: Iterable[float]) -> bool:
    """Return True where epsilons of groups differ by more than a search for equal ones leaves.

    >>> epsilons_differ([2.99, 3.0]), epsilons_differ([1.0, 3.0])
    (False, True)
    """
    found = list(epsilons)
    return max(found) > 1.02 * min(found)


def _start_sentences(run: Run) -> list[str]:
    """Warning of an optimizer that brought state of earlier steps."""
    if not run.facts.start.optimizer_state:
        return []
    return [
        "Warning: the optimizer came with state of earlier steps, such as momentum. If raw gradients of "
        "this data are in it, the guarantee does not hold."
    ]


def _method_name(run: Run) -> str:
    """Return the name of the method of a run; of a policy of the user's, what its facts say."""
    plan = run.facts.plan
    return str(run.facts.method.get("method", "")) if plan is None else plan.method


def attack_risk_sentences(run: Run) -> list[str]:
    """Sentences on the most that any attack on the model achieves; empty without a guarantee."""
    if math.isinf(run.epsilon()):
        return []
    who = "people" if run.facts.rows is not None else "examples"
    risk = run.risk()
    found = [
        f"{'one' if at else 'an attack'} that wrongly names {1000 * rate:g} of 1,000 {who} that were not in "
        f"it finds at most {per_thousand(found)} of 1,000 that were"
        for at, (rate, found) in enumerate(
            zip(risk.false_positive_rates, risk.true_positive_rates, strict=True)
        )
    ]
    return [
        f"As a risk, for any attack that infers from what was released which {who} were in the "
        f"data: {'; '.join(found)}. Its advantage is at most {upper(risk.advantage)}, and its AUC at most "
        f"{upper(risk.auc)} (.5 is guessing). These are bounds on all attacks, not the success of one."
    ]


def per_thousand(share: float) -> str:
    """Text of a share as a number of 1,000, rounded up to a tenth."""
    return f"{math.ceil(1e4 * share - 1e-9) / 10:,.1f}"


def several_rows_sentence(run: Run) -> str:
    """Sentences on the larger epsilon of people who own several examples."""
    rows = run.facts.rows
    if rows is not None:
        return (
            f"The guarantee is for each person, of whose rows at most {rows:,} were trained on. It relies on "
            "the ids in the data: someone with two ids counts as two people."
        )
    single = "The guarantee is for one example. Someone who owns several is protected less"
    if math.isinf(run.epsilon()):
        return f"{single}."
    return (
        f"{single}: epsilon is {owner_epsilons(run)} examples, at the same delta. equidp account "
        "--rows-per-person computes it for other numbers of examples."
    )


def owner_epsilons(run: Run) -> str:
    """Return the epsilons of people who own several examples, by their number."""
    return ", ".join(f"{upper(run.epsilon(rows=rows))} with {rows}" for rows in _ROWS)


def files_to_review(
    run: Run,
    releases: Collection[str],
    *,
    in_budget: bool = False,
    further: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Return the files of `src/equidp` that an auditor of this run reads, by the reason to read them.

    docs/guarantees.md has what the kernel trusts; the first three rows are the whole of it for a run on
    single rows in one process, without releases beside its steps and with equal groups. The fourth has what
    the card states beside epsilon.

    Args:
        run: the finished run.
        releases: names of releases in addition to its steps.
        in_budget: True where a budget limits the run.
        further: files of releases by name.
    """
    facts = run.facts
    engine = _ENGINE_FILES.get(facts.engine, f"the code of {facts.engine}, which was given to the trainer")
    files = {
        "each step, its noise, the record and epsilon": ("kernel/",),
        "the record on disk": ("ledger/",),
        "norms and sums of gradients": (
            engine,
            "engines/measurement.py",
            "training/trainer.py",
        ),
        "attack risk, and epsilon for replacing an example or for several": _BOUND_FILES,
    }
    events = {event for event, _ in run.entries}
    if any(isinstance(event, GroupedStepEvent) for event in events):
        files["rates and bounds by group"] = _GROUP_FILES
    if _method_name(run) == "prototypes":
        files["prototypes"] = _PROTOTYPE_FILES
    if facts.rows is not None:
        files["people as examples"] = _PEOPLE_FILES
    of_releases = {**_FILES_OF_RELEASES, **(further or {})}
    for name in releases:
        if name in of_releases:
            files[name] = (*of_releases[name], *_RELEASE_FILES)
    if facts.processes > 1:
        files["several processes"] = _PROCESS_FILES
    if in_budget:
        files["the budget"] = _BUDGET_FILES
    return {why: ", ".join(names) for why, names in files.items()}
