"""State that several calls of an estimator on one model share."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import final

from torch import Tensor, nn

from equidp.kernel.epsilon import Entries
from equidp.kernel.ledger import Event, MemoryLedger, StepEvent
from equidp.kernel.policy import statistics_noise
from equidp.training.plan import ResolvedPlan


@final
@dataclass
class Progress:
    """A model that calls of `partial_fit` train one after the other, and the one ledger of what they spent.

    Attributes:
        ledger: of all calls.
        model: None before the first call.
        rows: of all calls.
        group_names: of the first call.
        calls: how many spent something.
        spent: ("rows" or "people", what a fit spent) of all the estimator's fits, also of earlier models.
        learnt: whether the classes are known before the first rows are seen.
        of_people: whether an example was a person with several rows.
        class_weights: that the first call with class_weight="balanced" released, [classes].
    """

    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    model: nn.Module | None = None
    rows: int = 0
    group_names: tuple[str, ...] | None = None
    calls: int = 0
    spent: list[tuple[str, Entries]] = field(default_factory=list)
    learnt: bool = False
    class_weights: Tensor | None = None
    of_people: bool = False

    def steps_like(self, plan: ResolvedPlan) -> int:
        """Steps of earlier calls that a Trainer of this plan would take for its own."""
        noise = statistics_noise(plan.policy, plan.noise_multiplier)
        event = StepEvent(plan.sample_rate, plan.noise_multiplier, noise)
        return sum(count for each, count in self.ledger.entries if each == event)

    def spent_since(self, before: Entries) -> Entries:
        """Entries spent since the ledger held the entries `before`."""
        counts: Counter[Event] = Counter()
        for event, count in self.ledger.entries:
            counts[event] += count
        for event, count in before:
            counts[event] -= count
        return tuple((event, count) for event, count in counts.items() if count)
