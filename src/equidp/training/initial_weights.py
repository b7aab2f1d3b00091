"""Origin of the weights of a run beside its own steps, as far as this process can see.

Epsilon of a run covers its own steps. Weights that were trained before on the same people, or momentum of raw
gradients, bring along what those steps learnt. A process sees the runs of its own Trainers, weights that
`build_model` made, and the state of optimizers; it does not see what happened in files or other processes.
A copy of a model that such a run trained, or of its layers, is known by its values, as long as the model
itself is there.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.weak import WeakTensorKeyDictionary

from equidp._provenance import weights_digest
from equidp.accounting.limit import EventCounts, unstated_entries
from equidp.data.dataset import GroupedDataset
from equidp.data.shared_rows import RowDigests
from equidp.errors import ModelError, PrivacyWarning
from equidp.kernel.epsilon import Entries
from equidp.kernel.ledger import Event, Ledger, is_step

FRESH, GIVEN = "fresh", "given"

_fresh: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()  # model -> digest of its weights
_trained: Any = WeakTensorKeyDictionary()  # parameter -> tuple of traces
_lock = threading.Lock()

_DISTINCT = 8
"""Fewest numbers in a parameter that differ from each other, from which equal values say that one is copied:
biases of zeros are equal in many models."""


@dataclass(frozen=True)
class Start:
    """Origin of initial weights.

    Attributes:
        weights: "fresh" from `build_model`, "given" by the caller; "": not known.
        earlier: events and counts spent by other runs of this process on some of these weights, before this
            run or between its steps; () if none.
        runs: ids of those runs.
        same_data: whether one of those runs was on rows of the same data.
        other_unit: whether one of those runs counted rows, and this one people, or the other way round.
        optimizer_state: whether the optimizer came with state, such as momentum, of steps of no known run.
    """

    weights: str = ""
    earlier: EventCounts = ()
    same_data: bool = False
    optimizer_state: bool = False
    other_unit: bool = False
    runs: frozenset[str] = frozenset()


class Trace:
    """Record of a run, kept for each parameter that it trains: what it spent, and on which dataset."""

    def __init__(self, run_id: str, train: object) -> None:
        self.run_id, self.of_people = run_id, _of_people(train)
        self.rows = train.row_digests if isinstance(train, GroupedDataset) else None
        try:
            self._train: Callable[[], object] = ref(train)
        except TypeError:  # a list, say, cannot be referred to weakly
            self._train = lambda: None
        self.entries: EventCounts = ()
        self._attached = False  # to all parameters

    def shares_data(self, other: Trace) -> bool:
        """Return True if both runs were on one dataset, or on datasets that share rows."""
        train = self._train()
        if train is not None and train is other._train():
            return True
        if self.rows is None or other.rows is None:
            return False
        return max(self.rows.count_shared(other.rows), other.rows.count_shared(self.rows)) > 0

    def note(self, parameters: Iterable[nn.Parameter], ledger: Ledger) -> None:
        """Record what was spent so far, and attach this trace to each parameter that has moved by now."""
        self.entries = tuple(ledger.entries)
        if self._attached:
            return
        self._attached = True
        with _lock:
            for parameter in parameters:
                traces = _trained.get(parameter, ())
                if self not in traces and _has_moved(parameter):
                    _trained[parameter] = (*traces, self)
                elif self not in traces:
                    self._attached = False


def _has_moved(parameter: nn.Parameter) -> bool:
    """Return False for a parameter that the last step left as it was, as without noise an unused one is."""
    return parameter.grad is None or bool(parameter.grad.any())


def _of_people(train: object) -> bool:
    """Return True if an example of the dataset is a person with several rows."""
    return getattr(train, "rows", None) is not None


def mark_fresh(model: nn.Module) -> None:
    """Record that the current weights of a model come from no data."""
    if not any(is_lazy(each) for each in model.parameters()):
        _fresh[model] = weights_digest(model)


def copy_traces(model: nn.Module, copied: nn.Module) -> None:
    """Record for a copy of a model that its parameters were trained in the same runs."""
    with _lock:
        for ours, theirs in zip(model.parameters(), copied.parameters(), strict=True):
            if ours in _trained:
                _trained[theirs] = _trained[ours]


def end_traces(model: nn.Module) -> None:
    """Record for a model that further steps of the runs that trained it do not train it: it is a copy."""
    with _lock:
        for each in model.parameters():
            if each in _trained:
                _trained[each] = tuple(map(copy.copy, _trained[each]))


def count_trained_on(model: nn.Module, rows: RowDigests) -> int:
    """Return how many of some rows are rows that a run of this process trained a model on."""
    with _lock:
        traces = _traces(model)
    return max((rows.count_shared(trace.rows) for trace in traces if trace.rows is not None), default=0)


def start_by_now(model: nn.Module, start: Start, run_id: str, entries: Entries) -> Start:
    """Return the origin of a finished run's weights, with steps that trained them after the run.

    Args:
        model: of the run, which others may have trained further.
        start: of the run, as it was at its end.
        run_id: of the run; "": not known, and the start stays as it is.
        entries: of the run.
    """
    with _lock:
        traces = _traces(model, by_values=False)
    spent = _merge_by_run(traces)
    further = unstated_entries(tuple(spent.pop(run_id, ())), tuple(entries))
    if not run_id or not (further or spent.keys() - start.runs):
        return start
    return replace(
        start,
        earlier=(*(each for of_run in spent.values() for each in of_run), *further),
        runs=start.runs | spent.keys(),
        same_data=start.same_data or bool(further) or _shares_data(traces, run_id),
        other_unit=start.other_unit or len({trace.of_people for trace in traces}) > 1,
    )


def _shares_data(traces: Collection[Trace], run_id: str) -> bool:
    """Return True if another run was on data that shares rows with a run's."""
    return any(
        own.shares_data(other) for own in traces for other in traces if own.run_id == run_id != other.run_id
    )


def _merge_by_run(traces: Iterable[Trace]) -> dict[str, EventCounts]:
    """Return what each run spent, by id: of several traces of a run, the most of each event."""
    spent: dict[str, dict[Event, int]] = {}
    for trace in traces:
        most = spent.setdefault(trace.run_id, {})
        for event, steps in trace.entries:
            most[event] = max(steps, most.get(event, 0))
    return {run_id: tuple(most.items()) for run_id, most in spent.items()}


def start_of(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    own: Trace,
    ledger: Ledger,
    *,
    private: bool,
    known: Start | None = None,
    by_values: bool = True,
) -> Start:
    """Origin of a run's weights; warns if other runs trained them, or the optimizer was used before.

    Args:
        model, optimizer, own: of the run, whose trace `own` is.
        ledger: of the run; its entries so far count as this run's own.
        private: True for a private run; without privacy there is no warning.
        known: start of which a warning was given already. After the run's first step, where the first
            weights came from is as it says.
        by_values: also look for other models with some of these weights, which training by one seed gives
            too.
    """
    with _lock:
        traces = _traces(model, by_values=by_values)
    others = [trace for trace in traces if trace.run_id != ledger.run_id]
    known = Start() if known is None else known
    begun = any(trace.run_id == ledger.run_id for trace in traces)
    has_steps = any(is_step(event) for event, _ in ledger.entries)
    start = Start(
        known.weights if begun and known.weights else _kind_of(model),
        tuple(entry for of_run in _merge_by_run(others).values() for entry in of_run),
        known.same_data or any(trace.shares_data(own) for trace in others if trace.run_id not in known.runs),
        known.optimizer_state or (not others and not has_steps and _has_state(optimizer)),
        any(trace.of_people != own.of_people for trace in others),
        frozenset(trace.run_id for trace in others),
    )
    if private and start.runs - known.runs:
        where = "the same data" if start.same_data else "data that may be of the same people"
        steps = sum(count for _, count in start.earlier)
        when = "between steps of this run" if begun else "before"
        warnings.warn(
            f"this model was trained {when}, in {steps:,} steps on {where}, and epsilon of this run does not "
            "count them. The card says what all steps come to. For this run's epsilon alone, train a new "
            "model.",
            PrivacyWarning,
            stacklevel=4,
        )
    if private and start.optimizer_state and not known.optimizer_state:
        warnings.warn(
            "the optimizer comes with state of earlier steps, such as momentum. If raw gradients of this "
            "data are in it, epsilon does not hold. Make a new optimizer.",
            PrivacyWarning,
            stacklevel=4,
        )
    return start


def _kind_of(model: nn.Module) -> str:
    """Return "fresh" for weights as `build_model` made them; else "given"."""
    return FRESH if model in _fresh and _fresh[model] == weights_digest(model) else GIVEN


def _traces(model: nn.Module, *, by_values: bool = True) -> set[Trace]:
    """Traces of runs on any of the parameters, or on other parameters with equal values, as copies have.

    Traces found by equal values are attached, since further steps change the values.
    """
    own = list(model.parameters())
    traces = {trace for each in own for trace in _trained.get(each, ())}
    if not by_values:
        return traces
    alike = [
        (each, {trace for other, left in _trained.items() if _equal(each, other) for trace in left})
        for each in own
    ]
    is_copy = all(found for each, found in alike if each.requires_grad)
    for each, found in alike:
        if found and (is_copy or len(each.detach().real.float().unique()) >= _DISTINCT):
            _attach_copies(each, found)
            traces |= found
    return traces


def _attach_copies(parameter: nn.Parameter, traces: set[Trace]) -> None:
    """Record for a copied parameter what runs have spent so far; their further steps do not train it."""
    held = _trained.get(parameter, ())
    known = _merge_by_run(held)
    more = [each for each in traces if unstated_entries(each.entries, known.get(each.run_id, ()))]
    _trained[parameter] = (*held, *map(copy.copy, more))


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return True if two tensors have the same values, type and device."""
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device) and torch.equal(
        one, other
    )


def _has_state(optimizer: torch.optim.Optimizer) -> bool:
    """Return True if an optimizer holds state of earlier steps. Adagrad's initial state has step 0."""
    return any(
        isinstance(value, torch.Tensor)
        for state in optimizer.state.values()
        if state.get("step", 1) != 0
        for value in state.values()
    )


def copy_model(model: nn.Module, what: str) -> nn.Module:
    """Copy a model with its weights. Activations that modules keep are copied without their graph.

    Args:
        model: to copy.
        what: names what needs the copy, for the message.

    Raises:
        ModelError: the model cannot be copied.
    """
    held = (
        value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)
    )
    memo: dict[int, Any] = {id(value): value.detach().clone() for value in held if not value.is_leaf}
    try:
        twin = copy.deepcopy(model, memo)
    except Exception as error:
        raise ModelError(
            f"the model cannot be copied ({error}), and {what} needs a copy; go without, or let "
            "copy.deepcopy copy the model.",
            field="model",
        ) from error
    copy_traces(model, twin)
    return twin
