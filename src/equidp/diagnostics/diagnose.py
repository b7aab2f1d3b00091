"""diagnose(): what one private step does to each group, at a model's present parameters."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import nn

from equidp._validate import unknown_name
from equidp.data.dataset import GroupedDataset
from equidp.diagnostics.clipping_error import best_clipping_bound
from equidp.diagnostics.effort import Effort
from equidp.diagnostics.gradients import Subject
from equidp.diagnostics.measure import draw_batches, group_curvature, view_group
from equidp.diagnostics.rows import Step, batch_figures, group_row, pair_rows
from equidp.diagnostics.smoothness import kinks
from equidp.engines import make_engine
from equidp.engines.preserved import undisturbed
from equidp.errors import ApproximationWarning, DataError, SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.policy import Policy

_PUBLIC = {"group", "other", "examples", "learning_rate"}


@dataclass(frozen=True)
class Diagnosis:
    """Where the disparity of one step comes from. It is computed from raw training data: it must not leave the house.

    Attributes:
        sensitive_groups: one row per group; docs/diagnostics.md explains the columns, `_se` marks standard errors.
        sensitive_pairs: one row per ordered pair of groups: how their excess risks differ, and bounds on that.
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
    loss: LossFunction | None = None,
    engine: str = "ghost",
    groups: Sequence[str] | None = None,
    effort: Effort | None = None,
    seed: int = 0,
) -> Diagnosis:
    """Says for each group what clipping and noise of the next private step add to its loss, and why (spec section 3.1).

    The model is diagnosed in evaluation mode and left as it was. The policy is asked in the state it is in; it learns nothing.

    Args:
        model: any module whose outputs for one example do not depend on others.
        policy: the method, in any state.
        data: the training data.
        batch_size: b, the expected size of a Poisson sample.
        learning_rate: eta, of a plain gradient step.
        noise_multiplier: sigma.
        loss: (outputs, targets) -> losses [batch]; default: cross-entropy.
        engine: name of the gradient engine.
        groups: names of those to diagnose; None: all.
        effort: how much to look at; default: `Effort()`.
        seed: of the samples and vectors that are drawn.

    Raises:
        SettingError, DataError: a policy that does not clip, a group that is unknown or empty, a batch larger than the data.
    """
    loss = nn.CrossEntropyLoss(reduction="none") if loss is None else loss
    subject = Subject(model, loss, make_engine(engine, model, loss))
    chosen = chosen_groups(data, groups)
    check_clips(policy)
    if not 1 <= batch_size <= len(data):
        raise SettingError(
            f"batch_size={batch_size}; expected between 1 and {len(data)}, the number of examples."
        )
    warn_of_kinks(subject, data)
    step = Step(learning_rate, noise_multiplier, batch_size, float(policy.sensitivity))
    return diagnose_step(subject, policy, data, step, chosen, effort or Effort(), seed)


def diagnose_step(
    subject: Subject,
    policy: Policy,
    data: GroupedDataset,
    step: Step,
    chosen: Sequence[int],
    effort: Effort,
    seed: int,
) -> Diagnosis:
    """`diagnose`, of what was checked before."""
    policy = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(seed)
    present = [group for group, size in enumerate(data.group_sizes().tolist()) if size]
    with undisturbed(subject.model):
        views = {group: view_group(subject, policy, data, group, effort, generator) for group in present}
        batches = draw_batches(
            subject, policy, data, batch_size=step.batch_size, count=effort.batches, seed=seed
        )
        data_gradient = subject.zeros()
        for view in views.values():
            data_gradient += view.share * view.gradient
        figures = {}
        for group in chosen:
            curvature = group_curvature(subject, data, views[group].usable, batches, effort, generator)
            figures[group] = batch_figures(views[group], curvature, batches, data_gradient, step)
    groups = pd.DataFrame([group_row(each, step) for each in figures.values()])
    groups["best_bound_all"] = best_clipping_bound(
        torch.cat([view.norms for view in views.values()]),
        epsilon=step.laplace_epsilon,
        expected_count=step.batch_size,
    )
    return Diagnosis(_marked(groups), _marked(pd.DataFrame(pair_rows(figures, step))))


def _marked(table: pd.DataFrame) -> pd.DataFrame:
    """Figures of raw data say in their names that they are."""
    return table.rename(columns=lambda name: name if name in _PUBLIC else f"sensitive_{name}")


def chosen_groups(data: GroupedDataset, names: Sequence[str] | None) -> list[int]:
    """Indices of the groups to diagnose, each of which has examples."""
    for name in names or ():
        if name not in data.group_names:
            raise unknown_name("group", name, data.group_names)
    chosen = [data.group_names.index(name) for name in names or data.group_names]
    sizes = data.group_sizes()
    for group in chosen:
        if not sizes[group]:
            raise DataError(
                f"group {data.group_names[group]!r} has no example, so it has no gradient to diagnose; "
                "leave it out by naming the others in groups=."
            )
    return chosen


def check_clips(policy: Policy) -> None:
    """Refuses a policy that privacy costs nobody anything under."""
    if math.isinf(policy.sensitivity):
        raise SettingError(
            f"{type(policy).__name__} neither clips nor adds noise, so there is nothing to diagnose; choose a private policy."
        )


def warn_of_kinks(subject: Subject, data: GroupedDataset) -> None:
    """Warns where second derivatives exist almost everywhere only."""
    with undisturbed(subject.model):
        inputs, targets, *_ = next(
            subject.chunks(data, torch.arange(min(4, len(data)), device=data.groups.device))
        )
        found = kinks(subject.model, subject.loss, inputs, targets)
    if found:
        warnings.warn(
            f"the model is not smooth ({', '.join(found)}): second-order terms of its diagnosis hold almost everywhere, and miss "
            "the curvature that sits in the kinks. Models with tanh or GELU and average pooling have none.",
            ApproximationWarning,
            stacklevel=3,
        )


def warn_of_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Warns where a step is not what the diagnosis describes."""
    plain = isinstance(optimizer, torch.optim.SGD) and not any(
        group["momentum"] or group["weight_decay"] for group in optimizer.param_groups
    )
    if not plain:
        warnings.warn(
            f"{type(optimizer).__name__} moves otherwise than by learning rate times gradient (momentum, weight decay, scaling); "
            "the diagnosis is of a plain gradient step at the same learning rate.",
            ApproximationWarning,
            stacklevel=3,
        )
