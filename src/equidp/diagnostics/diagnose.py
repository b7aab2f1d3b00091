"""diagnose(): what one private step does to each group, at a model's present parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from equidp._extras import require_extra
from equidp._validate import check_number, unknown_name
from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.findings import find_causes
from equidp.diagnostics.gradients import Subject
from equidp.diagnostics.measure import Effort, Measurement, Step
from equidp.engines import make_engine
from equidp.engines.units import reader_of
from equidp.errors import DataError, ModelError, SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.policy import Policy, Setting
from equidp.policies.checks import check_settings

with require_extra("tables"):
    import pandas as pd

_PUBLIC = {"group", "other", "examples", "learning_rate"}


@dataclass(frozen=True)
class Diagnosis:
    """Causes of disparity in one step or several. Computed from raw training data: never release it.

    Attributes:
        sensitive_groups: one row per group. docs/why-groups.md explains the columns, and `_se` marks standard
            errors. For a run, the columns step and epoch come first.
        sensitive_pairs: one row per ordered pair of groups: difference of their excess risks, and bounds on
            it.

    Example:
        >>> diagnosis = Diagnosis(pd.DataFrame({"group": ["a"]}), pd.DataFrame())
        >>> list(diagnosis.sensitive_groups["group"])
        ['a']
    """

    sensitive_groups: pd.DataFrame
    sensitive_pairs: pd.DataFrame

    @classmethod
    def of(cls, measurement: Measurement, chosen: Sequence[int]) -> Diagnosis:
        """Return the measurements of groups, by their indices."""
        return cls(*(table.rename(columns=_mark_sensitive) for table in measurement.tables(chosen)))

    @classmethod
    def of_table(cls, table: pd.DataFrame) -> Diagnosis:
        """Return the diagnosis from a table of `Diagnostics` in a comparison."""
        groups, pairs = table[table["other"] == ""].drop(columns="other"), table[table["other"] != ""]
        parts = (part.dropna(axis=1, how="all").infer_objects() for part in (groups, pairs))
        return cls(*(part.reset_index(drop=True) for part in parts))

    def findings(self) -> list[str]:
        """Return sentences on the group that loses most by clipping and noise, since when, and why.

        docs/why-groups.md explains the rules."""
        return find_causes(self.sensitive_groups)


def diagnose(
    model: nn.Module,
    policy: Policy,
    data: GroupedDataset,
    *,
    batch_size: float,
    learning_rate: float,
    noise_multiplier: float,
    policy_state: NamedTuple | None = None,
    loss: LossFunction | None = None,
    engine: str = "ghost",
    groups: Sequence[str] | None = None,
    effort: Effort | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Return what clipping and noise of the next step add to each group's loss, and why (spec section 3.1).

    The model is diagnosed in evaluation mode and left as it was.

    Args:
        model: module whose outputs for one example do not depend on other examples.
        policy: policy of the method.
        data: training data.
        batch_size: expected size b of a Poisson sample.
        learning_rate: learning rate eta of a plain gradient step.
        noise_multiplier: noise multiplier sigma.
        policy_state: what the policy has learned, such as `trainer.policy_state`. None: state before the
            first step.
        loss: (outputs, targets) -> losses [batch]. Default: cross-entropy.
        engine: name of the gradient engine.
        groups: names of the groups to diagnose. None: all.
        effort: how much to measure. Default: `Effort()`.
        seed: seed of the samples and vectors.

    Raises:
        SettingError, DataError, ModelError, PolicyError: an argument has another type, the policy does not
            clip, a group is unknown or empty, or the batch is larger than the data.

    Example:
        >>> import torch, equidp
        >>> groups = torch.arange(20) % 2
        >>> data = equidp.GroupedDataset(torch.randn(20, 3), groups, groups, ("a", "b"), ("no", "yes"))
        >>> step = {"batch_size": 10, "learning_rate": 0.1, "noise_multiplier": 1.0}
        >>> little = equidp.Effort(batches=2, trace_vectors=2, eigenvalue_products=2)
        >>> found = equidp.diagnose(torch.nn.Linear(3, 2), equidp.DPSGD(), data, effort=little, **step)
        >>> found.sensitive_groups["group"].tolist()
        ['a', 'b']
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"model={model!r}; expected a torch.nn.Module.")
    check_settings(policy)
    if not isinstance(data, GroupedDataset):
        raise DataError(
            f"data is a {type(data).__name__}; expected an equidp.GroupedDataset, of inputs, targets "
            "and groups.",
            field="data",
        )
    check_number("[0, inf)", learning_rate=learning_rate)
    if not 1 <= batch_size <= len(data):
        raise SettingError(
            f"batch_size={batch_size}; expected between 1 and {len(data)}, the number of examples."
        )
    loss = data.training_loss(loss)
    reads = reader_of(model, loss)
    subject = Subject(reads, loss, make_engine(engine, reads, loss, policy))
    if policy_state is None:
        setting = Setting(data.num_groups, float(batch_size), noise_multiplier, len(subject.zeros()))
        policy_state = policy.init(setting)
    step = Step(policy, policy_state, learning_rate, noise_multiplier, batch_size, data.num_groups)
    chosen = check_groups(data, step, groups)
    return Diagnosis.of(Measurement(subject, data, step, effort or Effort(), seed), chosen)


def check_groups(data: GroupedDataset, step: Step, groups: Sequence[str] | None) -> list[int]:
    """Return the indices of the groups to diagnose. None: all.

    Raises:
        SettingError, DataError: a policy that neither clips nor adds noise; a group that is unknown, or has
            no examples.
    """
    if math.isinf(step.sensitivity):
        raise SettingError(
            f"{type(step.policy).__name__} neither clips nor adds noise, so there is nothing to diagnose; "
            "choose a private policy.",
            field="policy",
        )
    chosen, sizes = [], data.group_sizes()
    for name in data.group_names if groups is None else groups:
        if name not in data.group_names:
            raise unknown_name("group", name, data.group_names)
        chosen.append(data.group_names.index(name))
        if not sizes[chosen[-1]]:
            raise DataError(
                f"group {name!r} has no example, so it has no gradient to diagnose; leave it out by naming "
                "the others in groups=."
            )
    return chosen


def _mark_sensitive(column: str) -> str:
    return column if column in _PUBLIC else f"sensitive_{column}"
