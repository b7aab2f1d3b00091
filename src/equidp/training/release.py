"""Release: what a run releases in addition to its steps, for a part of its epsilon; loads no torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from equidp._validate import unknown_name
from equidp.accounting.planned import release_event
from equidp.kernel.event import Event, EventCounts

if TYPE_CHECKING:
    from equidp.policies.setting import MethodSetting
    from equidp.training.plan import Plan
    from equidp.training.resolved import ResolvedPlan
    from equidp.training.trainer import Trainer


class Release:
    """A private release of a run in addition to its steps. Subclasses are frozen dataclasses of its settings.

    `Plan.resolve` charges it, and the ledger lists it by name. A Trainer calls it before the first step,
    after each epoch and after the last step. It responds with `trainer.release(self, draw)`, which pays,
    draws and stores the result. The run's folder stores the result in `file` and copies it to `share/`. The
    dry run, the card and `equidp verify` show it by name. Fields made by `option` become options of `equidp
    train`.

    Attributes:
        name: name in the ledger.
        file: JSON file in the run's folder that stores the result.
        individual: `Individual` settings of the accounting for single examples. None: not needed.

    Example:
        >>> from dataclasses import dataclass
        >>> import torch, equidp
        >>> @dataclass(frozen=True)
        ... class SumOfInputs(equidp.Release):
        ...     share: float = 0.1
        ...     name, file = "sum of inputs", "sum-of-inputs.json"
        ...     def epsilon(self, target):
        ...         return self.share * target
        ...     def before(self, trainer):
        ...         def draw(noise):
        ...             given = {"noise_multiplier": noise, "randomness": trainer.randomness}
        ...             return equidp.private_sum(trainer.train.inputs, bound=1.0, **given).tolist()
        ...         trainer.release(self, draw)
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=16, steps=4, epsilon=3.0,
        ...                          releases=(SumOfInputs(),))
        >>> run = trainer.fit()
        >>> len(trainer.released["sum of inputs"]), run.epsilon() <= 3.0
        (3, True)
    """

    name: ClassVar[str]
    file: ClassVar[str]
    individual: ClassVar[Any] = None

    def epsilon(self, target: float | None) -> float:
        """Return the epsilon of one draw by itself, in a run of this target epsilon."""
        raise NotImplementedError

    def charges(self, resolved: ResolvedPlan) -> EventCounts:
        """Return the (event, count) pairs that it costs, each with its name. Default: one draw of `epsilon`.

        Args:
            resolved: plan without the noise of its steps, which is not known yet.
        """
        event = release_event(self.epsilon(resolved.plan.run_epsilon), resolved.delta)
        return ((replace(event, name=self.name), 1),)

    def check(self, plan: Plan) -> None:
        """Raise a SettingError unless it is compatible with a plan."""

    def check_data(self, train: Any) -> None:
        """Raise a SettingError unless it is compatible with the training data."""

    def prepare(self, run: Any, pay: Callable[[Release, Callable[[float], Any]], Any]) -> Any:
        """Draw values that data or plan depend on, before there is a Trainer, and return the updated run.

        `equidp train` calls this. A Trainer of your own does not, and rejects such a release before its first
        step.

        Args:
            run: `equidp.runs.begin.PreparedRun` of `equidp train`.
            pay: `pay(self, draw)` charges the release, calls draw(noise multiplier), and stores and returns
                the result.
        """
        return run

    def before(self, trainer: Trainer) -> None:
        """Called before the first step."""

    def after_epoch(self, trainer: Trainer) -> None:
        """Called after each n / b steps, and after the last step of the plan."""

    def after(self, trainer: Trainer) -> None:
        """Called after the last step, and if training was stopped for good."""

    def card_entries(self) -> dict[str, str]:
        """Return further entries of the card by name, in addition to what the ledger counts."""
        return {}

    @classmethod
    def options(cls) -> list[MethodSetting]:
        """Return its command-line options, by default its fields with a help text."""
        from equidp.policies.setting import settings_of

        return [each for each in settings_of(cls) if each.help]

    @classmethod
    def from_options(cls, given: Mapping[str, Any]) -> Self | None:
        """Return the release that the options request, or None if none of its options is given."""
        own = {name: given.get(name) for name in getattr(cls, "__dataclass_fields__", ())}
        own = {name: value for name, value in own.items() if value not in (None, False)}
        return cls(**own) if own else None

    def to_options(self) -> dict[str, Any]:
        """Return the options that request it, in the form that `from_options` reads."""
        return {each.name: getattr(self, each.name) for each in self.options()}

    @classmethod
    def prepares(cls) -> bool:
        """Return whether data or plan depend on it."""
        return cls.prepare is not Release.prepare

    @staticmethod
    def from_plain(content: Mapping[str, Any]) -> Release:
        """Return the release from plain values, as `release_of` does."""
        return release_of(content)

    def to_plain(self) -> dict[str, Any]:
        """Return its name and its settings as plain values, which `from_plain` reads."""
        return {"kind": self.name, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Charge(Release):
    """Release that is drawn elsewhere, as an event that counts towards the epsilon of the plan."""

    event: Event
    name: ClassVar[str] = "charge"

    def charges(self, resolved: ResolvedPlan) -> EventCounts:
        """Return the event, once."""
        return ((self.event, 1),)


RELEASES: dict[str, type[Release] | str] = {
    "preprocessing": "preprocessing:PreprocessingRelease",
    "class counts": "counts:CountsRelease",
    "individual privacy": "individual:IndividualRelease",
}
"""Name -> class, or module:Class below `equidp.runs.releases`, in the order of the command line."""


def release_class(name: str) -> type[Release]:
    """Return the class of a release by its name in `RELEASES`.

    Raises:
        SettingError: there is no such release.
    """
    if name not in RELEASES:
        raise unknown_name("kind of release", name, RELEASES)
    kind = RELEASES[name]
    if isinstance(kind, str):
        module, _, own = kind.partition(":")
        kind = getattr(importlib.import_module(f"equidp.runs.releases.{module}"), own)
    return kind


def release_of(content: Mapping[str, Any]) -> Release:
    """Return the release of plain values that its `to_plain` returned.

    Raises:
        SettingError: the kind is not in `RELEASES`, or it rejects the settings.
    """
    settings = dict(content)
    return release_class(settings.pop("kind"))(**settings)
