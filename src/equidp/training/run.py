"""Run: a trained model with what it cost."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn

from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, ModelError, SettingError
from equidp.evaluation.groups import group_metrics
from equidp.evaluation.predict import predict
from equidp.kernel.engine import LossFunction
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Run:
    """What training gave and what it spent.

    Attributes:
        model: the trained model.
        entries: the private steps, from the ledger.
        delta: the delta that `epsilon` is reported at unless told otherwise.
        loss: per-example loss that the model was trained with.
        accountant: name of the accountant that the run was planned with.
        settings: how it was trained, as plain values.
    """

    model: nn.Module
    entries: tuple[tuple[StepEvent, int], ...]
    delta: float
    loss: LossFunction
    accountant: str = "pld"
    settings: Mapping[str, Any] = field(default_factory=dict)

    def epsilon(self, delta: float | None = None, accountant: str | None = None) -> float:
        """Epsilon of everything the run spent; infinite where it trained without privacy."""
        return epsilon(self.entries, self.delta if delta is None else delta, accountant or self.accountant)

    def metrics(self, test: GroupedDataset) -> pd.DataFrame:
        """Accuracy and loss on `test` by group, and of all; see `equidp.evaluation.groups.group_metrics`.

        Raises:
            DataError: not a GroupedDataset, or one with other classes than the training data's.
        """
        self._check_test(test)
        outputs = predict(self.model, test.inputs)
        return group_metrics(outputs, test.targets, test.groups, test.group_names)

    def card(
        self,
        path: str | os.PathLike[str],
        *,
        test: GroupedDataset | None = None,
        data: str = "",
        notes: Sequence[str] = (),
        released: Mapping[str, float] | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the model card: what the model is, what it guarantees, and what it does to each group.

        Args:
            path: ending in .html or .md.
            test: what metrics by group are of.
            data: what the data is called.
            notes: sentences on how the data was prepared, above all what epsilon does not cover (`DataSplit.notes`).
            released: individual privacy that was released, by name, such as the mean of `IndividualReport.release_mean`. It cost
                privacy, so the run must have been taken after it: `trainer.run()`.
            details: further plain values, listed with the settings.

        Raises:
            SettingError: another ending, a place that cannot be written, or releases that the run does not count.
        """
        from equidp.report.card import write_cards  # reports need runs, not the other way round

        if test is not None:
            self._check_test(test)
        # A release reads every example, so its event has sample rate 1.
        if released and (
            len({event for event, _ in self.entries}) < 2
            or all(event.sample_rate < 1 for event, _ in self.entries)
        ):
            raise SettingError(
                f"released={dict(released)}, but this run was taken before it was paid for; write the card of trainer.run()."
            )
        write_cards(self, [path], test, data, notes, released or {}, details or {})

    def _check_test(self, test: GroupedDataset) -> None:
        if not isinstance(test, GroupedDataset):
            raise DataError(
                f"the test set is a {type(test).__name__}; expected an equidp.GroupedDataset, which holds inputs, targets and "
                "groups."
            )
        classes = self.settings.get("classes", test.class_names)
        if list(classes) != list(test.class_names):
            raise DataError(
                f"the test set counts its classes {', '.join(map(repr, test.class_names))}, and the model was trained with "
                f"{', '.join(map(repr, classes))}; give them the same order, and all of them."
            )


def copied(model: nn.Module) -> nn.Module:
    """A copy with weights of its own; of activations that modules hold on to, without their graph.

    Raises:
        ModelError: it cannot be copied.
    """
    held = (
        value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)
    )
    memo: dict[int, Any] = {id(value): value.detach().clone() for value in held if not value.is_leaf}
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied ({error}), and a Run taken before the last step needs a copy; take it after the last, "
            "or use trainer.ledger and trainer.model."
        ) from error
