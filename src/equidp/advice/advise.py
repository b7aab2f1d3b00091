"""Advice on method and settings: those with the best results on data of the same kind.

The kind follows only from public facts, the shape of an input and the number of examples. It reads no row and
costs no privacy. `RULES` has each kind with its evidence; docs/evidence-tables.md has the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from equidp.data.dataset import DataSource, GroupedDataset
from equidp.data.features import WithFeatures
from equidp.data.scattering import SMALLEST, number_of_features
from equidp.errors import SettingError
from equidp.policies.methods import MethodLike, fixed_options, method_named, name_of
from equidp.policies.setting import settings_of
from equidp.policies.table import STANDARD
from equidp.tables.intervals import Binning
from equidp.training.averages import count_left_out
from equidp.training.optimizers import SCHEDULES
from equidp.training.plan import Plan

DEFAULT_EPSILON = 3.0
"""Epsilon of advice and of comparisons that no privacy is given for."""
SHARED = ("delta", "loss", "class_weight", "noise_multiplier")
"""Options of a plan that define the training goal and the privacy. There is no advice on them."""

_SCATTERING = "scattering"
_SMALLEST_BATCH, _LARGEST_BATCH = 512, 8192
_QUIET_BATCH = 2048
"""Below it, noise moves the weights of a linear model on standardised columns too far at learning rate 10."""
_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 360, 20, 60
_MOMENTUM, _TAIL = 0.9, 0.5
"""Momentum, and share of the steps in the average, if the learning rate follows from the noise."""
_LARGEST_RATE = 10.0
"""Largest learning rate with `_MOMENTUM`: beyond it, steps are unstable."""
_LEAST_WAY, _SHORT_WAY = 10.0, 40.0
"""Sums of all learning rates, over 1 - momentum. Below the first, a model does not learn the shares of
classes. Below the second, it learns little beyond them."""


class Data(NamedTuple):
    """Public facts of training data.

    Attributes:
        examples: their number.
        numbers: True for one tensor of floating-point numbers.
        features: number of scattering features of an example, or 0 if it is not an image or too small.
        cut: whether the columns of a table are cut into intervals.
        unit: name of features of norm 1, or None for other inputs.
    """

    examples: int
    numbers: bool
    features: int
    cut: bool
    unit: str | None


@dataclass(frozen=True)
class Rule:
    """Rule that gives a kind of data its method and settings.

    Attributes:
        kind: kind of data, in words.
        holds: whether data is of this kind. The first rule that holds is taken.
        evidence: for method, features and settings together.
        settings: fields of `Plan` and settings of the method. Empty: the user's plan.
        method: name from `METHODS`.
        deviation: standard deviation of a prediction (the difference of two logits) due to noise only, from
            which the learning rate follows. None: `settings` have it.
    """

    kind: str
    holds: Callable[[Data], bool]
    evidence: str
    settings: Mapping[str, Any]
    method: str = STANDARD
    deviation: float | None = None


_IMAGES = {"model": "logistic", "clipping_bound": 1.0, "momentum": _MOMENTUM, "schedule": "linear"}
_BY_NOISE = {"momentum": _MOMENTUM, "schedule": "cosine", "average": "tail", "average_share": _TAIL}
RULES = (
    Rule(
        "inputs of several tensors, or of whole numbers",
        lambda data: not data.numbers,
        "no benchmark runs to choose by, so DP-SGD with the usual settings.",
        {},
    ),
    Rule(
        "fewer than 10,000 images",
        lambda data: data.features > 0 and data.examples < 10_000,
        "a linear model on fixed filters, which read no training data (Tramer and Boneh 2021); on 1,229 "
        "digits DP-SGD costs the rare class less than methods that keep lengths of gradients.",
        {**_IMAGES, "learning_rate": 1.0},
    ),
    Rule(
        "images of more than 10,000 scattering features",  # MNIST has 3,969, CIFAR-10 15,552
        lambda data: data.features > 10_000,
        "long gradients, and noise in as many directions, need short steps: the gender of 87.6% of UTKFace's "
        "faces at epsilon 3 (89.5% without privacy), by the settings for fewer features 82.5%.",
        {**_IMAGES, "learning_rate": 4.0, "clipping_bound": 0.1},
    ),
    Rule(
        "10,000 images and more",
        lambda data: data.features > 0,
        "Global-Adapt scales all gradients by one factor: MNIST with 500 eights has 97.8% at epsilon 5.43,"
        " its eights 89.2%; DP-SGD's best of eight random settings 97.7% and 88.1%, DPSGD-F's 97.5% and "
        "90.6%.",
        {**_IMAGES, "learning_rate": 2.0, "initial_bound": 5.0, "tolerance": 0.7},
        method="global-adapt",
    ),
    Rule(
        "columns cut into intervals",
        lambda data: data.cut,
        "rows are about equally long, so clipping at 1.2 favours none, and the learning rate is as large as "
        "noise lets it be, which gives the difference of two logits a deviation of 0.6.",
        {"model": "additive", "clipping_bound": 1.2, **_BY_NOISE},
        deviation=0.6,
    ),
    Rule(
        "features of norm 1",
        lambda data: data.unit is not None,
        "clipping at 1.4 shortens only gradients of a true class below 30%, and the learning rate is as "
        "large as noise lets it be, which gives the difference of two logits a deviation of 1.",
        {"model": "logistic", "clipping_bound": 1.4, **_BY_NOISE},
        deviation=1.0,
    ),
    Rule(
        "other numbers",
        lambda data: True,
        "with these settings no method that evens out the cost does clearly better than DP-SGD. Gradients "
        "of a rare class, or of people with many rows, can be longer than 2; clipping can shift predicted "
        "risks.",
        {"model": "logistic", "clipping_bound": 2.0, "learning_rate": 10.0, "schedule": "cosine"},
    ),
)
"""Rule of each kind of data. The first that holds is taken."""


@dataclass(frozen=True)
class Advice:
    """Method, features and settings for a dataset and a model.

    Attributes:
        method: name from `METHODS`.
        features: name from `FEATURES`. None: inputs as they are.
        settings: fields of `Plan` and settings of the method, by name. Empty: the user's plan.
        binning: binning of the columns of a table. None: as they are encoded.
        evidence: sentence on the evidence for the choice, or "" if the user chose otherwise.
        caution: sentence on what the settings cannot do. "": none.
        given: settings that the user gave.

    Example:
        >>> from equidp.data import open_source
        >>> advice = advise(open_source("digits").split(seed=0).train)
        >>> advice.method, advice.features, advice.plan(Plan()).batch_size
        ('dpsgd', 'scattering', 512)
    """

    method: str
    features: str | None
    settings: Mapping[str, Any]
    binning: str | None = None
    evidence: str = ""
    caution: str = ""
    given: Mapping[str, Any] = field(default_factory=dict)

    def with_settings(self, given: Mapping[str, Any], features: str | None, method: MethodLike) -> Advice:
        """Return the advice with the user's settings, features and method; its evidence if it still holds.

        Args:
            given: settings by name. Those that the method does not have are left out.
            features: name of the features that are trained on. None: inputs as they are.
            method: method to train by.
        """
        known = {each.name for each in settings_of(method_named(method).policy)} | Plan.names()
        asked = {name: value for name, value in given.items() if name in known}
        settings = {**self.settings, **asked, **fixed_options(method)}
        sized = {"batch_size", "epochs"}
        holds = (name_of(method), features) == (self.method, self.features) and all(
            settings[name] == value for name, value in self.settings.items() if name not in sized
        )
        return replace(
            self,
            method=name_of(method),
            features=features,
            settings={name: value for name, value in settings.items() if name in known},
            evidence=self.evidence if holds else "",
            given=asked,
        )

    @property
    def reasons(self) -> list[str]:
        """Sentences on why, and on the settings that were given."""
        values = {
            name: f"{value:g}" if isinstance(value, float) else value for name, value in self.given.items()
        }
        texts = (f"{name.replace('_', ' ')} {value}" for name, value in values.items())
        given = f"Given: {', '.join(texts)}." if self.given else ""
        return [sentence for sentence in (self.evidence, self.caution, given) if sentence]

    def plan(self, given: Plan) -> Plan:
        """Plan with these settings and the given task and privacy (`SHARED`); else the given one."""
        if not self.settings:
            return given
        return Plan(**{name: getattr(given, name) for name in SHARED}).with_changes(self.settings)


def advise(
    train: GroupedDataset,
    level: Mapping[str, Any] = {"epsilon": DEFAULT_EPSILON},
    given: Mapping[str, Any] | None = None,
    binning: str | None = None,
    features: str | None = None,
) -> Advice:
    """Return method and settings for a kind of data: the shape of an input and the number of examples.

    Args:
        train: training data.
        level: epsilon or risk of the run. Empty: noise is the given `noise_multiplier`.
        given: settings that the user gives, by name, which the learning rate suits.
        binning: binning of the columns that the run trains on. None: the data has no columns.
        features: name of the features, if the inputs are features of norm 1 (`normalised_features`). None:
            other inputs.

    Raises:
        SettingError: a linear model would learn nothing from so few examples at so small a budget.
    """
    n, inputs = len(train), train.inputs
    numbers = isinstance(inputs, Tensor) and inputs.is_floating_point()
    shape = train.input_shape if numbers else ()
    is_image = train.rows is None and len(shape) == 3 and min(shape[1:]) >= SMALLEST
    data = Data(
        examples=n,
        numbers=numbers,
        features=number_of_features(shape) if is_image else 0,
        cut=bool(Binning.parse(binning).cuts),
        unit=features,
    )
    rule = next(rule for rule in RULES if rule.holds(data))
    evidence = f"{rule.kind[0].upper()}{rule.kind[1:]}: {rule.evidence}"
    if any((given or {}).get(name, value) != value for name, value in rule.settings.items()):
        evidence = ""
    if not rule.settings:
        return Advice(rule.method, None, {}, evidence=evidence)
    caution = ""
    if rule.deviation is None:
        batch = _batch_size(n)
        settings = {**rule.settings, "batch_size": batch, "epochs": _epochs(n, batch)}
        if not data.features:
            settings["learning_rate"] *= min(1.0, batch / _QUIET_BATCH)
    else:
        settings, way = _settings_by_noise(rule.settings, rule.deviation, n, level, given or {})
        if way < _SHORT_WAY:
            caution = (
                f"Few rows for this budget: with {n:,} examples, steps add up to {way:.2g}, and below "
                f"{_SHORT_WAY:g} a model learns little beyond the shares of the classes; below 20 its "
                "predicted risks may be worse than those shares. More rows or a larger epsilon help."
            )
    taken = _SCATTERING if data.features else None if data.cut else features
    return Advice(rule.method, taken, settings, binning if data.cut else None, evidence, caution)


def _batch_size(num_examples: int) -> int:
    """Batch size: about a twelfth of the examples, a power of two from 512 to 8192, at most all examples."""
    wanted = min(max(_SMALLEST_BATCH, num_examples / 12), _LARGEST_BATCH)
    return min(1 << round(math.log2(wanted)), num_examples)


def _epochs(num_examples: int, batch: int) -> int:
    """Number of epochs that gives enough steps, between 20 and 60."""
    return min(max(_LEAST_EPOCHS, math.ceil(_STEPS * batch / num_examples)), _MOST_EPOCHS)


def _settings_by_noise(
    settings: Mapping[str, Any],
    deviation: float,
    num_examples: int,
    level: Mapping[str, Any],
    given: Mapping[str, Any],
) -> tuple[dict[str, Any], float]:
    """Return settings for a linear model of rows of norm about 1, and the sum of all its learning rates.

    Noise moves each weight by the same amount, and so each output of a row of norm 1, for any number of
    columns and intervals, or of features. The learning rate is set so that noise in a prediction has the
    deviation. The sum of all learning rates, over 1 - momentum, is how far the weights can learn. It then
    follows only from n and the noise. The bound of one row also serves for people with several rows: most
    have few, and noise costs more than clipping the sums of the others.
    """
    batch = int(given.get("batch_size", _batch_size(num_examples))) or num_examples
    epochs = float(given.get("epochs", _epochs(num_examples, batch)))
    bound = float(given.get("clipping_bound", settings["clipping_bound"]))
    asked = {name: given[name] for name in ("delta", "noise_multiplier", "steps") if name in given}
    plan = Plan(batch_size=batch, epochs=epochs).with_changes(asked).with_changes(level, accountant="rdp")
    resolved = plan.with_usual_noise().resolve(num_examples)
    rates, noise = _sums_of_rates(
        settings["schedule"], count_left_out("tail", _TAIL, resolved.steps), resolved.steps
    )
    # A prediction is the difference of two logits, of one weight of an input each.
    noise *= math.sqrt(2.0) * resolved.noise_multiplier * bound / (resolved.sample_rate * num_examples)
    learning_rate = min(_LARGEST_RATE, deviation / noise) if noise else _LARGEST_RATE
    way = rates * learning_rate
    if way < _LEAST_WAY and "learning_rate" not in given:
        raise SettingError(
            f"{num_examples:,} examples at this privacy, whose noise allows steps that add up to {way:.2g};"
            f" expected {_LEAST_WAY:g} or more: with less a model does not learn the shares of classes. "
            f"Raise epsilon, or the number of examples, about {float(f'{_LEAST_WAY / way:.2g}'):,g} times, "
            "or give a --learning-rate.",
            field="epsilon",
        )
    changed = {
        "clipping_bound": bound,
        "learning_rate": float(f"{learning_rate:.3g}"),
        "batch_size": batch,
        "epochs": int(epochs) if epochs == int(epochs) else epochs,
    }
    return {**settings, **changed}, way


def _sums_of_rates(schedule: str, left_out: int, steps: int) -> tuple[float, float]:
    """Sum of the learning rates of all steps, and root of the sum of squares of what each gradient moves.

    Both are over 1 - momentum, for a first rate of 1. Momentum repeats a gradient at the rates of its step
    and of later steps. Each repetition moves the average as often as weights after it are in the average.
    """
    rates = [SCHEDULES[schedule](step / steps) / (1 - _MOMENTUM) for step in range(steps)]
    moved, squares = 0.0, 0.0
    for step in reversed(range(steps)):
        moved = rates[step] * min(1.0, (steps - step) / (steps - left_out)) + _MOMENTUM * moved
        squares += (moved * (1 - _MOMENTUM)) ** 2
    return sum(rates), math.sqrt(squares)


def images_of(source: DataSource, seed: int) -> GroupedDataset | None:
    """Training images of a source with features that `advise` may choose, or None for other sources."""
    if isinstance(source, WithFeatures) and source.features == _SCATTERING:
        return source.source.split(seed).train
    return None


def normalised_features(source: DataSource) -> str | None:
    """Name of a source's features if each example's features have norm 1, or None for other inputs."""
    return source.label if isinstance(source, WithFeatures) and source.normalised else None
