"""diagnose(): what one private step does to each group, at a model's present parameters."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from equidp._extras import require_extra
from equidp._validate import check_number, unknown_name
from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.curvature import kinks
from equidp.diagnostics.effort import Effort
from equidp.diagnostics.excess_risk import best_clipping_bound
from equidp.diagnostics.gradients import Subject
from equidp.diagnostics.measure import Step, draw_batches, group_curvature, view_group
from equidp.diagnostics.rows import group_row, measure_batches, pair_rows
from equidp.engines import make_engine
from equidp.engines.model import in_evaluation_mode
from equidp.engines.units import reader_of
from equidp.errors import ApproximationWarning, DataError, ModelError, SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.policy import Policy, Setting
from equidp.policies.checks import check_settings

with require_extra("tables"):
    import pandas as pd

_PUBLIC = {"group", "other", "examples", "learning_rate"}


@dataclass(frozen=True)
class Diagnosis:
    """Where the disparity of one step comes from. Computed from raw training data: never release it.

    Attributes:
        sensitive_groups: one row per group; docs/why-groups.md explains the columns, `_se` marks standard
            errors.
        sensitive_pairs: one row per ordered pair of groups: how their excess risks differ, and bounds on
            that.

    Example:
        >>> found = Diagnosis(pd.DataFrame({"group": ["a"]}), pd.DataFrame())
        >>> list(found.sensitive_groups["group"])
        ['a']
    """

    sensitive_groups: pd.DataFrame
    sensitive_pairs: pd.DataFrame


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
        model: any module whose outputs for one example do not depend on others.
        policy: the method.
        data: the training data.
        batch_size: b, the expected size of a Poisson sample.
        learning_rate: eta, of a plain gradient step.
        noise_multiplier: sigma.
        policy_state: what the policy has learnt, such as `trainer.policy_state`; None: as before the first
            step.
        loss: (outputs, targets) -> losses [batch]; default: cross-entropy.
        engine: name of the gradient engine.
        groups: names of those to diagnose; None: all.
        effort: how much to measure; default: `Effort()`.
        seed: of the samples and vectors that are drawn.

    Raises:
        SettingError, DataError, ModelError, PolicyError: arguments of another kind, a policy that does not
            clip, a group that is unknown or empty, a batch larger than the data.

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
    loss = data.training_loss(loss)
    reads = reader_of(model, loss)
    subject = Subject(reads, loss, make_engine(engine, reads, loss, policy))
    chosen = chosen_groups(data, groups)
    if not 1 <= batch_size <= len(data):
        raise SettingError(
            f"batch_size={batch_size}; expected between 1 and {len(data)}, the number of examples."
        )
    if policy_state is None:
        setting = Setting(data.num_groups, float(batch_size), noise_multiplier, len(subject.zeros()))
        policy_state = policy.init(setting)
    step = Step(policy, policy_state, learning_rate, noise_multiplier, batch_size, data.num_groups)
    check_clips(step)
    warn_of_kinks(subject, data)
    return diagnose_step(subject, data, step, chosen, effort or Effort(), seed)


def diagnose_step(
    subject: Subject, data: GroupedDataset, step: Step, chosen: Sequence[int], effort: Effort, seed: int
) -> Diagnosis:
    """Return the diagnosis of a step that was checked before; chosen: indices of groups."""
    generator = torch.Generator().manual_seed(seed)
    present = [group for group, size in enumerate(data.group_sizes().tolist()) if size]
    with in_evaluation_mode(subject.model):
        views = {group: view_group(subject, step, data, group, effort, generator) for group in present}
        batches = draw_batches(subject, step, data, count=effort.batches, seed=seed)
        data_gradient = subject.zeros()
        for view in views.values():
            data_gradient += view.share * view.gradient
        measured = {}
        for group in chosen:
            curvature = group_curvature(subject, data, views[group].usable, batches, effort, generator)
            measured[group] = measure_batches(views[group], curvature, batches, data_gradient, step)
    groups = pd.DataFrame([group_row(each, step) for each in measured.values()])
    groups["best_bound_all"] = best_clipping_bound(
        torch.cat([view.norms for view in views.values()]),
        epsilon=step.laplace_epsilon,
        expected_count=step.batch_size,
    )
    return Diagnosis(_mark_sensitive(groups), _mark_sensitive(pd.DataFrame(pair_rows(measured, step))))


def _mark_sensitive(table: pd.DataFrame) -> pd.DataFrame:
    return table.rename(columns=lambda name: name if name in _PUBLIC else f"sensitive_{name}")


def chosen_groups(data: GroupedDataset, names: Sequence[str] | None) -> list[int]:
    """Return the indices of the groups to diagnose; None: all.

    Raises:
        SettingError, DataError: a group that is unknown, or has no examples.
    """
    for name in names or ():
        if name not in data.group_names:
            raise unknown_name("group", name, data.group_names)
    chosen = [data.group_names.index(name) for name in names or data.group_names]
    sizes = data.group_sizes()
    for group in chosen:
        if not sizes[group]:
            raise DataError(
                f"group {data.group_names[group]!r} has no example, so it has no gradient to diagnose; leave "
                "it out by naming the others in groups=."
            )
    return chosen


def check_clips(step: Step) -> None:
    """Refuse a policy that neither clips nor adds noise."""
    if math.isinf(step.sensitivity):
        raise SettingError(
            f"{type(step.policy).__name__} neither clips nor adds noise, so there is nothing to diagnose; "
            "choose a private policy.",
            field="policy",
        )


def warn_of_kinks(subject: Subject, data: GroupedDataset) -> None:
    """Warn of a model whose second derivatives exist only almost everywhere."""
    with in_evaluation_mode(subject.model):
        few = torch.arange(min(4, len(data)), device=data.groups.device)
        inputs, targets, *_ = next(subject.chunks(data, few))
        found = kinks(subject.model, subject.loss, inputs, targets)
    if found:
        warnings.warn(
            f"the model is not smooth ({', '.join(found)}): second-order terms of its diagnosis hold almost "
            "everywhere, and miss the curvature in the kinks. Models with tanh or GELU and average pooling "
            "have none.",
            ApproximationWarning,
            stacklevel=3,
        )
