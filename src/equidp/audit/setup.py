"""Setup that both audits share: plan, model and engine, checked, and measurements that are kept on disk."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from equidp._provenance import versions
from equidp._validate import check_number, check_seed
from equidp.accounting import calibrate_noise
from equidp.accounting.groups import LEVELS
from equidp.comparison.cells import part_digests
from equidp.data.dataset import GroupedDataset
from equidp.data.views import Views
from equidp.engines import checked_engine
from equidp.errors import CacheWarning, DataError, SettingError
from equidp.evaluation.intervals import check_level
from equidp.kernel.engine import Engine
from equidp.kernel.inputs import moved_to
from equidp.kernel.noise import Randomness, SeededRandomness, SystemRandomness
from equidp.policies.methods import MethodLike
from equidp.store import FIGURES, Store, key_of
from equidp.training.assemble import check_own_policy
from equidp.training.build import build_model
from equidp.training.example_accounts import check_conflicts
from equidp.training.plan import Plan, ResolvedPlan

Progress = Callable[[int, int], None]
"""Called with (steps done, steps in all) now and then."""


def checked_data(train: object) -> GroupedDataset:
    """Return the data on the CPU; DataError unless it is a `GroupedDataset` with examples."""
    if not isinstance(train, GroupedDataset) or not len(train):
        raise DataError(
            f"train is a {type(train).__name__} without examples that can be audited; expected an "
            "equidp.GroupedDataset with at least one.",
            field="train",
        )
    return train.to("cpu")


def resolve_plan(
    plan: Plan, method: MethodLike, train: GroupedDataset, examples: int, epsilon: float | None
) -> ResolvedPlan:
    """Resolve the plan for a method by name or import path, or for a user-defined policy, with equal groups.

    Args:
        plan: how to train.
        method: a name from `METHODS`, an import path, or a policy.
        train: the data.
        examples: public n, which determines the sample rate.
        epsilon: target; None: the plan's noise multiplier.

    Raises:
        SettingError, DataError, PolicyError: data, plan or method cannot be audited.
    """
    if plan.for_method(method).groups.levels or train.epsilons is not None:
        raise SettingError(
            f"{LEVELS}: an audit has claims for all or by group, and none by what people chose; leave out "
            "the levels and the column of choices (drop it), or make the levels groups with budgets.",
            field=LEVELS,
        )
    if plan.class_weight is not None:
        raise SettingError("an audit trains without class weights; leave them out.", field="class_weight")
    Views(plan.views, plan.augmentation).refuse("an audit needs")
    if plan.for_method(method).recalibration:
        raise SettingError(
            "an audit is of the steps of training; leave out recalibration, which is a release of its own.",
            field="recalibration",
        )
    if plan.for_method(method).training_loss:
        raise SettingError(
            "an audit is of the steps of training; leave out the training loss, a release of its own.",
            field="training_loss",
        )
    check_conflicts("individual_filter", plan.for_method(method).individual_filter, {"audit": True})
    if train.target_bounds is not None:
        raise SettingError(
            "an audit trains classifiers; leave out --task regression, and give classes.", field="train"
        )
    if epsilon is not None:
        check_number("(0, inf)", epsilon=epsilon)
    found = plan.for_method(method).without_groups().resolve(method, examples)
    check_own_policy(found.policy, train.num_groups, found.noise_multiplier)
    if not (found.policy.private and found.noise_multiplier):
        raise SettingError(
            f"{found.method} without noise claims no epsilon; there is nothing to audit.",
            field="noise_multiplier",
        )
    if found.policy.loss_terms:
        raise SettingError(
            f"an audit puts canaries of known gradients into the data, and {found.method} adds terms to "
            "losses, which canaries have not; audit dpsgd, whose weights are the same.",
            field="method",
        )
    if "weight" in found.policy.loss_readers:
        raise SettingError(
            f"an audit puts canaries of known gradients into the data, and weights of {found.method} follow "
            "from losses, which canaries have not; audit a method whose statistics alone read losses.",
            field="method",
        )
    if epsilon is None:
        return found
    noise = calibrate_noise(
        epsilon, found.delta, found.sample_rate, found.steps, found.policy.statistics_ratio
    )
    return replace(found, noise_multiplier=noise)


def make_subject(
    plan: ResolvedPlan, train: GroupedDataset, engine: str, seed: int, device: torch.device
) -> tuple[nn.Module, Engine]:
    """Return a model with the seed's initial weights, in training mode, and its engine, tried on the data.

    Raises:
        ModelError, SettingError: see `Trainer`.
    """
    model = build_model(plan.plan.factory, train.input_shape, train.num_classes, seed)
    model.to(device).train()
    row = moved_to(train.one_row(), device)
    loss = train.training_loss(plan.plan.loss_function)
    return model, checked_engine(engine, model, loss, row, train.class_names)


def procedure_text(steps: int, train: GroupedDataset) -> str:
    """Text that names the audited procedure.

    >>> targets, groups = torch.tensor([[0, 1]]), torch.tensor([0])
    >>> procedure_text(2, GroupedDataset(torch.zeros(1, 2, 3), targets, groups, ("a",), ("no", "yes")))
    '2 steps on people of up to 2 rows'
    """
    taken = "one step" if steps == 1 else f"{steps} steps"
    return taken if train.rows is None else f"{taken} on people of up to {train.rows} rows"


def check_audit(level: float, seed: int) -> None:
    """Check that the level is in (0, 1) and the seed in [0, 2^32)."""
    check_level(level)
    check_seed(seed)


def smallest_enough(start: int, enough: Callable[[int], bool], most: int = 10**7) -> int | None:
    """Return a number above `start` that is enough, at most a tenth above the least; None beyond `most`.

    >>> smallest_enough(10, lambda number: number >= 1000)
    1040
    """
    low, high = start, 2 * start
    while not enough(high):
        low, high = high, 2 * high
        if high > most:
            return None
    while high > 1.1 * low and high > low + 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def make_randomness(secure: bool, seed: int, *part: int) -> Randomness:
    """Return the operating system's randomness, or a separate stream for each seed and part."""
    return SystemRandomness() if secure else SeededRandomness(seed, *part)


Arrays = Mapping[str, npt.NDArray[Any]]


@final
class Measurements:
    """Named arrays of one audit in a store of its own; kept by nobody without a folder.

    Arrays are computed from private data: the folder must not be shared.

    Args:
        directory: where stores of audits lie; None: nothing is kept on disk.
        facts: plain values that determine the results, beside plan, data, `FIGURES` and versions of packages.
        plan: of the audited steps; where its code has no source, nothing is kept, and a CacheWarning says so.
        data: audited examples.
        fresh: True: what was kept of the same audit is removed.

    Raises:
        SettingError: the folder cannot be written.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        facts: Mapping[str, Any],
        plan: ResolvedPlan,
        data: GroupedDataset,
        *,
        fresh: bool = False,
    ) -> None:
        self._store: Store | None = None
        if directory is None:
            return
        code = part_digests(plan)
        if unknown := [name for name, digest in code.items() if digest is None]:
            message = f"an audit is not kept where the source of its {', '.join(unknown)} is not known."
            warnings.warn(message, CacheWarning, stacklevel=3)
            return
        key = key_of(dict(facts), code, vars(plan.policy), data_digest(data), FIGURES, versions())
        self._store = Store(Path(directory) / f"audit-{key}", private=True)
        self._store.check()
        if fresh:
            self._store.remove(*self._store.entries())

    def get(self, name: str) -> dict[str, npt.NDArray[Any]] | None:
        """Arrays kept under a name; None where there are none."""
        entry = None if self._store is None else self._store.get(name)
        return None if entry is None else {each: entry.array(each) for each in entry.facts["arrays"]}

    def put(self, name: str, arrays: Arrays) -> None:
        """Keep arrays under a name."""
        if self._store is not None:
            self._store.put(name, arrays, {"arrays": list(arrays)})

    def load(self, name: str) -> dict[str, Any] | None:
        """State of a training that `save` kept; None where there is none."""
        entry = None if self._store is None else self._store.get(name)
        if entry is None:
            return None
        content = io.BytesIO(entry.read("state.pt"))
        state: dict[str, Any] = torch.load(content, map_location="cpu", weights_only=True)
        return state

    def save(self, name: str, state: Mapping[str, Any]) -> None:
        """Keep the state of a training: nested dictionaries of tensors and numbers."""
        if self._store is not None:
            buffer = io.BytesIO()
            torch.save(dict(state), buffer)
            self._store.put(name, {"state.pt": buffer.getvalue()})

    def rows(self, name: str, take: Callable[[], npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
        """Return the array kept under a name; if missing, make it by `take` and keep it."""
        kept = self.get(name)
        if kept is None:
            kept = {"rows": take()}
            self.put(name, kept)
        return kept["rows"]


def data_digest(train: GroupedDataset) -> str:
    """Digest of all examples."""
    digest = hashlib.sha256(repr((train.group_names, train.class_names)).encode())
    for tensor in (train.one_tensor, train.trained_targets, train.groups):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
