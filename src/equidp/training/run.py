"""Run: a trained model with what it cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from torch import nn

from equidp.accounting.cache import epsilon
from equidp.accounting.risk import FALSE_POSITIVE_RATES, Risk
from equidp.data.dataset import GroupedDataset
from equidp.data.views import Views
from equidp.display import Column, Table, shown_epsilon
from equidp.errors import DataError
from equidp.evaluation.predictions import predict
from equidp.kernel.engine import LossFunction
from equidp.kernel.epsilon import Entries, epsilon_of_group
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.policy import Policy
from equidp.losses import Loss
from equidp.training.initial_weights import Start
from equidp.training.plan import ResolvedPlan

if TYPE_CHECKING:
    import pandas as pd


def fact(label: str, default: Any = None) -> Any:
    """Return a field of `RunFacts` that model cards list under a label, where it is known."""
    return field(default=default, metadata={"label": label})


@dataclass(frozen=True)
class RunFacts:
    """Facts about how a run was trained, for a reader; unknown ones are None or empty.

    Attributes:
        policy: the method with its settings.
        plan: plan that the Trainer was built from; None: the Trainer was made without a plan.
        num_examples, expected_batch_size: n and b of the run.
        steps: number of steps that were taken.
        steps_left: number of planned steps that were not taken, where the run ended early.
        event: event of a step, which each step that is left would spend.
        planned_steps: T, before a budget reduced it.
        optimizer, engine: names of their classes.
        learning_rate: of the optimizer's first group of parameters, before any schedule.
        randomness: name of the class that draws samples and noise.
        groups, classes: their names.
        rows: the most rows of one person, where an example is a person; None: an example is a row.
        views: views of each image in training.
        start: origin of the initial weights.
        class_weighted: True if losses have weights by class.
        processes: number of processes that trained together.
        run_id: random name of the run, as its ledger has it; "": not known.
    """

    policy: Policy | None = None
    plan: ResolvedPlan | None = None
    num_examples: int | None = fact("training examples")
    rows: int | None = fact("most rows of a person")
    expected_batch_size: float | None = fact("expected batch size")
    steps: int | None = fact("steps")
    steps_left: int = 0
    event: StepEvent | None = None
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
        """The policy's class and its settings, by name; empty where it is not known."""
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
            steps_left=max(0, trainer.steps - trainer.steps_done),
            event=trainer.event,
            planned_steps=trainer.planned_steps,
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
            run_id=trainer.ledger.run_id,
        )


@dataclass(frozen=True)
class Run:
    """Result of a training: the model and the privacy that it spent.

    Attributes:
        model: the trained model.
        entries: (event, number of steps) pairs, from the ledger.
        delta: at which `epsilon` is reported unless another is given.
        loss: per-example loss that the model was trained with.
        accountant: name of the accountant that the run was planned with.
        facts: how it was trained.

    Example:
        >>> import torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, data, policy=equidp.DPSGD(), batch_size=16,
        ...                          steps=2, noise_multiplier=2.0, delta=1e-3)
        >>> run = trainer.fit()
        >>> run.facts.steps, 0 < run.epsilon() < 3, run.epsilon(rows=2) > 2 * run.epsilon()
        (2, True, True)
        >>> run.risk().advantage < 0.2
        True
    """

    model: nn.Module
    entries: Entries
    delta: float
    loss: LossFunction
    accountant: str = "pld"
    facts: RunFacts = field(default_factory=RunFacts)

    def epsilon(self, delta: float | None = None, accountant: str | None = None, rows: int = 1) -> float:
        """Epsilon of everything the run spent; infinite where it trained without privacy.

        Args:
            delta: default: the run's.
            accountant: default: the run's, or "pld" for several rows.
            rows: number of examples of one person; epsilon usually grows by more than this factor.

        Raises:
            SettingError: rows not a whole number >= 1, or several with an accountant other than "pld".
        """
        usual = self.accountant if rows == 1 else "pld"
        delta = self.delta if delta is None else delta
        return epsilon(self.entries, delta, accountant or usual, rows)

    def epsilon_by_group(self, delta: float | None = None, accountant: str | None = None) -> dict[str, float]:
        """Epsilon of an example of each group, by name; equal where rates and bounds do not differ.

        It is known before the first step. Empty where groups have no names. Steps of another run in the same
        ledger count for an example that is in the group of the same name there.

        Args:
            delta, accountant: as in `epsilon`.

        Example:
            >>> import torch, equidp
            >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
            >>> data = equidp.GroupedDataset(x, targets, groups, ("rare", "usual"), ("no", "yes"))
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = equidp.Trainer(model, optimizer, data, policy=equidp.DPSGD(), batch_size=16,
            ...                          steps=2, noise_multiplier=2.0, delta=1e-3,
            ...                          bound_shares={"rare": 0.5})
            >>> run = trainer.fit()
            >>> {name: round(found, 2) for name, found in run.epsilon_by_group().items()}
            {'rare': 0.2, 'usual': 0.56}
        """
        own = self.delta if delta is None else delta, accountant or self.accountant
        return {name: epsilon_of_group(self.entries, name, *own) for name in self.facts.groups}

    def planned_epsilon(self) -> float:
        """Epsilon at `delta` of the whole plan: of what was spent, and of the steps that were left.

        It is what is promised where results, such as the accuracy of released weights, decided when to end.
        """
        planned = MemoryLedger(tuple(self.entries))
        if self.facts.event is not None:
            planned.count(self.facts.event, self.facts.steps_left)
        return epsilon(planned.entries, self.delta, self.accountant)

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
        """The most that any membership attack achieves on what the run released, at any delta.

        Args:
            false_positive_rates: at which true-positive rates are bounded.
            rows: number of examples of one person.

        Raises:
            SettingError: a rate outside (0, 1), or rows not a whole number >= 1.
        """
        return Risk.of(self.entries, false_positive_rates, rows)

    def metrics(self, test: GroupedDataset) -> pd.DataFrame:
        """Accuracy and loss on `test` by group, and of all; see `equidp.evaluation.groups.metrics_of`.

        They are exact, which epsilon covers for none of the examples in `test`: give examples that were held
        out, and do not publish metrics of training examples.

        Raises:
            DataError: not a GroupedDataset, or one with other classes than the training data's.
            MissingExtraError: the extra `tables` is not installed.
        """
        from equidp.evaluation.groups import metrics_of

        self.check_test(test)
        return metrics_of(predict(self.model, test.inputs), test.to("cpu"))

    def check_test(self, test: GroupedDataset) -> None:
        """Refuse a test set that the model was not trained for, with a DataError as `metrics` does."""
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
