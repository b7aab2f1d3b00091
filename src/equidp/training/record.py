"""RunRecord: a table of results of a run. EpochRecorder: appends metrics of each group by epoch.

Watch: what each run of a comparison records in addition to its results, by a TableCallback.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from equidp._extras import require_extra
from equidp._files import write_whole
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.engines.model import device_of
from equidp.engines.units import as_units
from equidp.errors import DataError
from equidp.evaluation.groups import check_outputs, group_metrics
from equidp.evaluation.predictions import predict
from equidp.individual.settings import Individual
from equidp.kernel.bounding import example_context, measured_terms
from equidp.kernel.inputs import moved_to, taken
from equidp.losses import Loss
from equidp.policies.weights import released_values, share_clipped, step_weights
from equidp.training.trainer import Callback, Trainer

with require_extra("tables"):
    import pandas as pd


class TableCallback(Callback):
    """Callback of one run of a comparison. Its table is kept with the results of the run.

    Attributes:
        individual: settings of the run's accounting for single examples. None: not needed.
    """

    individual: Individual | None = None

    def check(self, trainer: Trainer) -> None:
        """Raise a SettingError if it cannot record this run; called before any run is trained."""

    def table(self, trainer: Trainer) -> pd.DataFrame:
        """Return the table; called once after training."""
        raise NotImplementedError


class Watch(Protocol):
    """What each run of a comparison records: a frozen dataclass, whose values are part of the key of a run.

    `equidp.compare(callbacks=[watch])` makes a new callback for each run. It joins their tables as
    `Comparison.tables[name]`, with method, setting and seed as the first columns.

    Attributes:
        name: name of the table; "sensitive_..." if it is computed from raw training data and must not be
            shared.
        private_only: whether only private runs have such a table.
    """

    @property
    def name(self) -> str: ...

    @property
    def private_only(self) -> bool: ...

    def callback(self, data: DataSplit) -> TableCallback:
        """Return a callback for one run on this split."""


class RunRecord:
    """Rows of results in order, and the settings of the run.

    By default, rows contain only released values and metrics of test data, so epsilon covers all that they
    reveal about the training data.

    Args:
        settings: plain values (numbers, strings, lists) that describe the run.
        rows: rows of an earlier part of the run.

    Example:
        >>> import equidp
        >>> record = equidp.RunRecord({"method": "dpsgd"})
        >>> record.append({"epoch": 1, "group": "a", "accuracy": 0.5})
        >>> record.table()["accuracy"].tolist()
        [0.5]
    """

    def __init__(
        self, settings: Mapping[str, Any] | None = None, rows: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        self.settings: dict[str, Any] = dict(settings or {})
        self._rows: list[dict[str, Any]] = [dict(row) for row in rows]

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row."""
        self._rows.append(dict(row))

    def table(self) -> pd.DataFrame:
        """Table with one row per epoch and group, in order."""
        return pd.DataFrame(self._rows)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as Parquet with the settings in its metadata, atomically."""
        table = self.table()
        table.attrs = {"settings": json.dumps(self.settings)}
        buffer = io.BytesIO()
        table.to_parquet(buffer)
        write_whole(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RunRecord:
        """Read a record from a file written by `save`.

        Raises:
            DataError: the file is missing, damaged or has another format.
        """
        try:
            table = pd.read_parquet(path)
            settings = json.loads(table.attrs["settings"])
        except (OSError, ValueError, KeyError) as error:
            raise DataError(
                f"{path} is not a run's record ({error}); expected a file that RunRecord.save wrote.",
                field="path",
            ) from error
        return cls(settings, table.to_dict("records"))


class EpochRecorder(Callback):
    """Appends each group's metrics to a record after each epoch, from test data and releases only.

    Columns: epoch, step, group, accuracy, loss, mean_norm, max_norm, mean_gradient_norm, share_clipped,
    clipping_bound, scale, scale_name, epsilon, epsilon_of_steps_taken. Accuracy and loss are for
    `Trainer.released_model`, which has averaged weights if the run averages. Norms and share_clipped are for
    a sample of the test data, under the policy and the weights in training. An example is clipped if its
    weight is below the weight of a vanishing gradient of its group.

    Args:
        record: record to append to.
        test: test data.
        gradient_examples: most test examples per group to compute gradients for.

    Example:
        >>> import torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> record = equidp.RunRecord()
        >>> trainer = equidp.Trainer(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), data, method=equidp.DPSGD(),
        ...     batch_size=32, steps=2, noise_multiplier=2.0, delta=1e-3,
        ...     callbacks=[equidp.EpochRecorder(record, data)],
        ... )
        >>> run = trainer.fit()
        >>> record.table()["group"].tolist()
        ['a', 'b']
    """

    def __init__(self, record: RunRecord, test: GroupedDataset, *, gradient_examples: int = 200) -> None:
        self.record, self.test = record, test.to("cpu")
        members = (torch.nonzero(self.test.groups == group).flatten() for group in range(test.num_groups))
        self._samples = [each[:gradient_examples] for each in members]

    def before_training(self, trainer: Trainer) -> None:
        # Before any budget is spent: other groups than those of the policy, and outputs without metrics.
        self._check_test(trainer)
        check_outputs(predict(trainer.model, taken(self.test.inputs, [0])), self.test.targets)

    def _check_test(self, trainer: Trainer) -> None:
        """Reject a test set whose classes, or groups that the policy has values of, are in another order."""
        names, classes = self.test.group_names, self.test.class_names
        if isinstance(trainer.train, GroupedDataset):
            names, classes = trainer.train.group_names, trainer.train.class_names or classes
        if classes != self.test.class_names:
            raise DataError(
                f"the test set counts its classes {self.test.class_names}, and the training data {classes}; "
                "give them the same order, and all of them.",
                field="class_names",
            )
        count = trainer.num_groups
        if trainer.policy.needs_groups and (names != self.test.group_names or count != len(names)):
            raise DataError(
                f"the test set has the groups {self.test.group_names}, and the run {count}: {names}; give "
                "the test set the same, in this order.",
                field="group_names",
            )

    def state_dict(self) -> dict[str, str]:
        return {"rows": json.dumps(self.record._rows)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.record._rows[:] = json.loads(state["rows"])

    def after_epoch(self, trainer: Trainer) -> None:
        if not trainer.processes.first:
            return
        test, count = self.test, trainer.num_groups or 1
        released = released_values(trainer.policy, trainer.policy_state, count)
        outputs = predict(trainer.released_model, test.inputs)
        metrics = group_metrics(outputs, test).set_index("group").drop(columns="count")
        epsilons = trainer.epsilons()
        for group, name in enumerate(test.group_names):
            self.record.append(
                {
                    "epoch": round(trainer.epoch),
                    "step": trainer.steps_done,
                    "group": name,
                    **{metric: float(metrics.at[name, metric]) for metric in metrics.columns},
                    **self._gradient_values(trainer, group),
                    **_released_values(released, group),
                    **epsilons,
                }
            )

    def _gradient_values(self, trainer: Trainer, group: int) -> dict[str, float]:
        sample = self._samples[group]
        if not len(sample):
            return dict.fromkeys(("mean_norm", "max_norm", "mean_gradient_norm", "share_clipped"), math.nan)
        device = device_of(trainer.model)
        rows = moved_to(taken((self.test.inputs, self.test.targets), sample), device)
        rows = as_units(*rows) if Loss.of(trainer.loss).several_rows else rows
        groups = torch.full((len(sample),), group, device=device)
        context = example_context(trainer.policy, trainer.policy_state, groups)
        measured = trainer.engine(rows[0], rows[1], *context)
        norms, _ = measured_terms(trainer.policy, measured)
        sums = measured.sums(torch.full_like(norms, 1 / len(sample))).values()
        mean_gradient_norm = float(torch.stack([torch.linalg.vector_norm(each) for each in sums]).norm())
        weighed, count = (trainer.policy, trainer.policy_state), trainer.num_groups or 1
        weights = step_weights(*weighed, norms, groups, count)
        return {
            "mean_norm": float(norms.mean()),
            "max_norm": float(norms.max()),
            "mean_gradient_norm": mean_gradient_norm,
            "share_clipped": share_clipped(*weighed, weights, groups, count),
        }


def _released_values(released: dict[str, Tensor], group: int) -> dict[str, Any]:
    """The group's clipping bound and, if the policy has one, its second scale (Z or theta)."""
    values = {name: float(value[group] if value.dim() else value) for name, value in released.items()}
    bound = values.pop("clipping_bound", math.nan)
    name, scale = next(iter(values.items()), ("", math.nan))
    return {"clipping_bound": bound, "scale": scale, "scale_name": name}
