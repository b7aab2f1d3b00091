"""Run: a trained model with what it cost."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.utils.data import TensorDataset

from equidp.accounting.risk import FALSE_POSITIVE_RATES, Risk
from equidp.accounting.rows import epsilon
from equidp.data.dataset import GroupedDataset, as_one_group
from equidp.data.views import Views
from equidp.display import Column, Table, shown_epsilon
from equidp.errors import DataError
from equidp.evaluation.predictions import predict
from equidp.kernel.engine import LossFunction
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.event import Cost, Entries, Event, EventCounts, Label
from equidp.kernel.policy import Policy
from equidp.losses import Loss
from equidp.training.initial_weights import Start
from equidp.training.resolved import ResolvedPlan

if TYPE_CHECKING:
    import pandas as pd


def fact(label: str, default: Any = None) -> Any:
    """Return a field of `RunFacts` that model cards list under a label, if it is known."""
    return field(default=default, metadata={"label": label})


@dataclass(frozen=True)
class RunFacts:
    """Facts about how a run was trained, for a reader; unknown ones are None or empty.

    Attributes:
        policy: method with its settings.
        plan: plan that the Trainer was built from. None: the Trainer was made without a plan.
        num_examples, expected_batch_size: n and b of the run.
        steps: number of steps that were taken.
        event: event of a step.
        planned_steps: T.
        optimizer, engine: names of their classes.
        learning_rate: learning rate of the optimizer's first group of parameters, before any schedule.
        randomness: name of the class that draws samples and noise.
        groups, classes: their names.
        rows: maximum number of rows per person, if an example is a person. None: an example is a row.
        views: views of each image in training.
        start: origin of the initial weights.
        class_weighted: True if losses have weights by class.
        processes: number of processes that trained together.
        run_id: random name of the run, as its ledger has it. "": not known.
    """

    policy: Policy | None = None
    plan: ResolvedPlan | None = None
    num_examples: int | None = fact("training examples")
    rows: int | None = fact("most rows of a person")
    expected_batch_size: float | None = fact("expected batch size")
    steps: int | None = fact("steps")
    event: Event | None = None
    planned_steps: int | None = fact("steps of the whole plan")
    optimizer: str = fact("optimizer", "")
    learning_rate: float | None = fact("learning rate")
    engine: str = fact("gradient engine", "")
    randomness: str = fact("randomness", "SystemRandomness")
    groups: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    views: Views = field(default_factory=Views)
    start: Start = field(default_factory=Start)
    class_weighted: bool = False
    processes: int = 1
    run_id: str = ""

    @property
    def method(self) -> dict[str, Any]:
        """The policy's class and its settings, by name, or empty if it is not known."""
        if self.policy is None:
            return {}
        return {"method": type(self.policy).__name__, **asdict(self.policy)}  # type: ignore[call-overload]

    @classmethod
    def of(cls, trainer: Any) -> RunFacts:
        """Facts of a `Trainer`."""
        train = trainer.train if isinstance(trainer.train, GroupedDataset) else None
        rates = trainer.optimizer.param_groups[0]
        return cls(
            policy=trainer.policy,
            plan=trainer.plan,
            num_examples=trainer.num_examples,
            expected_batch_size=trainer.expected_batch_size,
            steps=trainer.steps_done,
            event=trainer.event,
            planned_steps=trainer.steps,
            optimizer=type(trainer.optimizer).__name__,
            learning_rate=float(rates.get("initial_lr", rates["lr"])),
            engine=type(trainer.engine).__name__,
            randomness=type(trainer.randomness).__name__,
            rows=None if train is None else train.rows,
            groups=() if train is None else train.group_names,
            classes=() if train is None else train.class_names,
            views=trainer.views,
            start=trainer.start,
            class_weighted=Loss.of(trainer.loss).class_weights is not None,
            processes=trainer.processes.count,
            run_id=trainer.run_id,
        )


@dataclass(frozen=True)
class Run:
    """Result of training: the model and its privacy cost.

    A run that ended early reports the cost of its whole plan. Results may have decided when to end, and then
    no smaller cost holds.

    Attributes:
        model: trained model.
        entries: (event, count) pairs that the guarantee covers, both spent and not taken.
        delta: default delta of `epsilon`.
        loss: per-example loss used in training.
        accountant: name of the plan's accountant.
        facts: facts about the training.
        not_taken: part of the entries that the plan had left when the run ended.

    Example:
        >>> import torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=16,
        ...                          steps=2, noise_multiplier=2.0, delta=1e-3)
        >>> run = trainer.fit()
        >>> run.facts.steps, 0 < run.epsilon() < 3, run.epsilon(rows=2) > 2 * run.epsilon()
        (2, True, True)
        >>> run.risk().advantage < 0.2
        True
    """

    model: nn.Module
    entries: EventCounts
    delta: float
    loss: LossFunction
    accountant: str = "pld"
    facts: RunFacts = field(default_factory=RunFacts)
    not_taken: EventCounts = ()

    @property
    def spent(self) -> EventCounts:
        """(event, count) pairs that were spent."""
        return subtract_counts(self.entries, self.not_taken)

    def epsilon(self, delta: float | None = None, accountant: str | None = None, rows: int = 1) -> float:
        """Epsilon of everything that the run spent or had left, or infinite if it trained without privacy.

        Args:
            delta: default: the run's delta.
            accountant: default: the run's accountant, or "pld" for several rows.
            rows: number of one person's examples. Epsilon usually grows by more than this factor.

        Raises:
            SettingError: rows is not a whole number >= 1, or is above 1 with an accountant other than "pld".
        """
        usual = self.accountant if rows == 1 else "pld"
        delta = self.delta if delta is None else delta
        return epsilon(self.entries, delta, accountant or usual, rows)

    def epsilon_by_group(self, delta: float | None = None, accountant: str | None = None) -> dict[str, float]:
        """Epsilon of an example of each group, by name; equal if rates and bounds do not differ.

        It is known before the first step. It is empty if groups have no names. If another run in the same
        ledger has the same groups, its steps count by group. Otherwise they count at their largest cost.

        Args:
            delta, accountant: as in `epsilon`.

        Example:
            >>> import torch, equidp
            >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
            >>> data = equidp.GroupedDataset(x, targets, groups, ("rare", "usual"), ("no", "yes"))
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=16,
            ...                          steps=2, noise_multiplier=2.0, delta=1e-3,
            ...                          bound_shares={"rare": 0.5})
            >>> run = trainer.fit()
            >>> {name: round(found, 2) for name, found in run.epsilon_by_group().items()}
            {'rare': 0.2, 'usual': 0.56}
        """
        own = self.delta if delta is None else delta, accountant or self.accountant
        whole = epsilon_of(self.entries, *own)
        events = [event for event, _ in self.entries if event.shares]
        column = (self.facts.event or next(iter(events), Event(1.0, 0.0))).column
        found = {name: epsilon_of(self.entries, *own, Label(column, name)) for name in self.facts.groups}
        return {name: min(whole, each) for name, each in found.items()}

    def epsilon_of_steps_taken(self) -> float:
        """Epsilon at `delta` of only what was spent; less than `epsilon` if the run ended early.

        It holds only if no result decided when to stop, for example after a crash or at a set time of day.
        """
        return epsilon(self.spent, self.delta, self.accountant)

    def _repr_html_(self) -> str:
        spent, facts = self.epsilon(), self.facts
        rows = {
            "method": facts.method.get("method"),
            "epsilon": f"{shown_epsilon(spent):g}" if math.isfinite(spent) else "not private",
            "delta": f"{self.delta:g}",
            "steps": facts.steps,
            "training examples": facts.num_examples,
            "groups": ", ".join(facts.groups),
        }
        known = [(name, str(value)) for name, value in rows.items() if value not in (None, "")]
        return str(Table([Column("fact", "name"), Column("value", "text")], known).to_html(heads=False))

    def risk(self, false_positive_rates: tuple[float, ...] = FALSE_POSITIVE_RATES, rows: int = 1) -> Risk:
        """Upper bound of any membership attack's success on what the run released, at any delta.

        Args:
            false_positive_rates: false-positive rates at which true-positive rates are bounded.
            rows: number of one person's examples.

        Raises:
            SettingError: a rate is outside (0, 1), or rows is not a whole number >= 1.
        """
        return Risk.of(self.entries, false_positive_rates, rows)

    def metrics(self, test: GroupedDataset | TensorDataset | Mapping[str, Tensor]) -> pd.DataFrame:
        """Accuracy and loss on `test` by group and overall; see `equidp.evaluation.groups.group_metrics`.

        Data without groups (a TensorDataset, or a mapping of tensors with labels) counts as one group.

        The metrics are exact, and epsilon does not cover the examples in `test`. Pass held-out examples, and
        do not publish metrics of training examples.

        Raises:
            DataError: the data has another form, or other classes than the training data.
            MissingExtraError: the extra `tables` is not installed.
        """
        from equidp.evaluation.groups import group_metrics

        rows: GroupedDataset = as_one_group(test, self.facts.classes)
        self.check_test(rows)
        return group_metrics(predict(self.model, rows.inputs), rows.to("cpu"))

    def check_test(self, test: GroupedDataset) -> None:
        """Raise a DataError, as `metrics` does, if the model was not trained for this test set."""
        if not isinstance(test, GroupedDataset):
            raise DataError(
                f"the test set is a {type(test).__name__}; expected an equidp.GroupedDataset, which holds "
                "inputs, targets and groups.",
                field="test",
            )
        test.check_single_rows("a test")
        classes = self.facts.classes or test.class_names
        if list(classes) != list(test.class_names):
            raise DataError(
                f"the test set counts its classes {', '.join(map(repr, test.class_names))}, and the model "
                f"was trained with {', '.join(map(repr, classes))}; give them the same order, and all of "
                "them.",
                field="class_names",
            )


def merge_entries(entries: Entries) -> EventCounts:
    """Return each event once, with all that it was counted, in order.

    >>> merge_entries([(Event(0.02, 1.0), 2), (Event(1.0, 9.0), 1), (Event(0.02, 1.0), 3)])[0][1]
    5
    """
    counts: Counter[Event] = Counter()
    for event, count in entries:
        counts[event] += count
    return tuple(counts.items())


def entries_left(plan: ResolvedPlan, event: Event, entries: Entries) -> EventCounts:
    """Return what a run with these entries has not spent of its plan: steps, and releases by what they cost.

    Args:
        plan: plan of the run.
        event: event of its steps, with the column of their labels.
        entries: entries that it has spent.
    """
    paid: Counter[Cost] = Counter()
    done = 0
    for each, count in entries:
        if each == event:
            done += count
        else:
            paid[each.cost()] += count
    left = [(event, plan.steps - done)]
    for each, count in plan.releases:
        drawn = min(count, paid[each.cost()])
        paid[each.cost()] -= drawn
        left.append((each, count - drawn))
    return tuple((each, count) for each, count in left if count > 0)


def subtract_counts(entries: Entries, left: Entries) -> EventCounts:
    """Return how often each event of the entries remains without the events of others.

    >>> subtract_counts([(Event(0.1, 1.0), 3)], [(Event(0.1, 1.0), 3)])
    ()
    """
    counts = Counter(dict(entries))
    counts.subtract(dict(left))
    return tuple((event, count) for event, count in counts.items() if count)
