"""Advice on method and settings: those with the best results on data of the same kind.

The kind follows from public facts alone, the shape of an input and the number of examples, and step sizes for
cut columns from these and the noise, so it reads no data and costs no privacy. docs/evidence-settings.md has
the results and the rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from equidp.data.dataset import DataSource, GroupedDataset
from equidp.data.features import WithFeatures
from equidp.data.scattering import SMALLEST, number_of_features
from equidp.display import Column, Table
from equidp.errors import SettingError
from equidp.policies.methods import MethodLike, fixed_options, method_named, name_of
from equidp.policies.setting import settings_of
from equidp.policies.table import STANDARD
from equidp.tables.intervals import Binning
from equidp.training.averages import count_left_out
from equidp.training.optimizers import SCHEDULES
from equidp.training.plan import Plan

AUTO = "auto"
"""Name of this advice among methods."""

DEFAULT_EPSILON = 3.0
"""Epsilon of advice and of comparisons that no privacy is given for."""
SHARED = (*("delta", "loss", "class_weight", "noise_multiplier"),)
"""Options of a plan that say what is trained for and how privately; no advice is on them."""

_SCATTERING = "scattering"
"""Features of images that advice chooses."""
_SMALLEST_BATCH, _LARGEST_BATCH = 512, 8192
_QUIET_BATCH = 2048
"""Below it, noise moves the weights of a linear model on standardised columns too far at learning rate 10."""
_MANY = 10_000
_WIDE = 10_000
"""Scattering features of an image from which on steps are short; MNIST has 3,969, CIFAR-10 15,552."""
_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 360, 20, 60
_MOMENTUM, _TAIL = 0.9, 0.5
"""Momentum, and share of the steps in the average, for cut columns."""


class _UnitRows(NamedTuple):
    """Constants for rows of norm 1, in the mean or each, by what they are and what is predicted.

    Attributes:
        model: name of the model.
        bound: clipping bound.
        noise: deviation that noise alone gives a prediction, the difference of two logits.
        weights: squared, the weights of one input that the prediction is the difference of.
        largest_rate: largest learning rate beside `_MOMENTUM`: beyond it, steps are unstable.
        least_way: least sum of all learning rates, over 1 - momentum, with which a model learns the shares of
            classes.
        short_way: as `least_way`, below which it learns little beyond these.
        least: that is learnt, in messages.
        reasons: names of the reasons for the model, bound, noise and a short way.
    """

    model: str
    bound: float
    noise: float
    weights: float
    largest_rate: float
    least_way: float
    short_way: float
    least: str
    reasons: tuple[str, str, str, str]


_CLASSES = _UnitRows(
    model="additive",
    bound=1.2,
    noise=0.6,
    weights=2.0,
    largest_rate=10.0,
    least_way=10.0,
    short_way=40.0,
    least="the shares of classes",
    reasons=("cut columns", "bound of cut rows", "noise in logits", "short way"),
)
_FEATURES = _CLASSES._replace(
    model="logistic",
    bound=1.4,
    noise=1.0,
    reasons=("linear model of features", "bound of features", "noise in logits", "short way"),
)


class Reason(NamedTuple):
    """Finding behind a choice of settings; `equidp.report.advice` has its sentence.

    Attributes:
        name: of the finding.
        about: names of the settings that it holds for; with another value of one of them it does not.
        numbers: in its sentence.
        text: in its sentence.
    """

    name: str
    about: tuple[str, ...] = ()
    numbers: tuple[float, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Advice:
    """Method, features and settings for a dataset and a model.

    Attributes:
        method: a name from `METHODS`.
        features: a name from `FEATURES`; None: inputs as they are.
        settings: fields of `Plan` and settings of the method, by name; empty: the user's plan.
        binning: of the columns of a table; None: as they are encoded.
        reasons: for each choice; none on settings that the user gave.

    Example:
        >>> from equidp.data import open_source
        >>> advice = advise(open_source("digits").split(seed=0).train)
        >>> advice.method, advice.features, advice.plan(Plan()).batch_size
        ('dpsgd', 'scattering', 512)
    """

    method: str
    features: str | None
    settings: Mapping[str, Any]
    reasons: tuple[Reason, ...]
    binning: str | None = None

    def with_settings(self, given: Mapping[str, Any], features: str | None, method: MethodLike) -> Advice:
        """Return the advice with the user's settings, features and method, and the reasons that still hold.

        Args:
            given: settings by name; those that the method does not have are left out.
            features: name of the features that are trained on; None: inputs as they are.
            method: that is trained by.
        """
        known = {each.name for each in settings_of(method_named(method).policy)} | Plan.names()
        asked = {name: value for name, value in given.items() if name in known}
        taken = {**asked, **fixed_options(method)}
        settings = {name: value for name, value in {**self.settings, **taken}.items() if name in known}
        other = {name for name, value in taken.items() if self.settings.get(name) != value}
        other |= self.settings.keys() - known
        other |= {"features"} if features != self.features else set()
        other |= {"method"} if name_of(method) != self.method else set()
        reasons = [reason for reason in self.reasons if other.isdisjoint(reason.about)]
        if asked:
            reasons.append(Reason("given", text=settings_text(asked)))
        return replace(
            self, method=name_of(method), features=features, settings=settings, reasons=tuple(reasons)
        )

    def plan(self, given: Plan) -> Plan:
        """Plan with these settings and the given task and privacy (`SHARED`); else the given one."""
        if not self.settings:
            return given
        return Plan(**{name: getattr(given, name) for name in SHARED}).with_changes(self.settings)

    def _repr_html_(self) -> str:
        given = {"method": self.method, "features": self.features or "none", **self.settings}
        rows = [(name.replace("_", " "), str(value)) for name, value in given.items()]
        return Table((Column("setting", "name"), Column("advice", "text")), rows).to_html()


def settings_text(settings: Mapping[str, Any]) -> str:
    """Text of settings, such as "batch size 512, learning rate 2.5"."""
    texts = {
        name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in settings.items()
    }
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in texts.items())


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
        level: epsilon or risk of the run; empty: noise is the given `noise_multiplier`.
        given: settings that the user gives, by name, which the learning rate suits.
        binning: of the columns that the run trains on; None: the data has no columns.
        features: that the inputs are, where these have norm 1 (`normalised_features`); None: other inputs.

    Raises:
        SettingError: a linear model would learn nothing from so few examples at so small a budget.
    """
    inputs = train.inputs
    cuts = Binning.parse(binning).cuts
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return _without_results("inputs of several tensors, or of whole numbers")
    if train.rows is None and len(train.input_shape) == 3 and min(train.input_shape[1:]) >= SMALLEST:
        return _advise_images(len(train), train.input_shape)
    if cuts:
        return _advise_unit_rows(len(train), level, given or {}, _CLASSES, binning=binning)
    if features is not None:
        return _advise_unit_rows(len(train), level, given or {}, _FEATURES, features=features)
    return _advise_table(len(train), train.rows)


def images_of(source: DataSource, seed: int) -> GroupedDataset | None:
    """Training images of a source with features that `advise` may choose; None for other sources."""
    if isinstance(source, WithFeatures) and source.features == _SCATTERING:
        return source.source.split(seed).train
    return None


def normalised_features(source: DataSource) -> str | None:
    """Name of a source's features where each example's have norm 1; None for other inputs."""
    return source.label if isinstance(source, WithFeatures) and source.normalised else None


def _without_results(kind: str) -> Advice:
    """DP-SGD with the settings of the user's plan."""
    return Advice(STANDARD, None, {}, (Reason("no results", ("method",), text=kind),))


_LARGE_SAMPLES = Reason("large samples", ("batch_size", "schedule"))


def _advise_images(num_examples: int, shape: tuple[int, ...]) -> Advice:
    batch, size = _batch_size(num_examples), number_of_features(shape)
    method = STANDARD
    settings = {
        "model": "logistic",
        "clipping_bound": 1.0,
        "momentum": 0.9,
        "batch_size": batch,
        "epochs": _epochs(num_examples, batch),
        "schedule": "linear",
    }
    if num_examples < _MANY:
        name = "few images"
        settings |= {"learning_rate": 1.0}
    elif size > _WIDE:
        name = "many features"
        settings |= {"learning_rate": 4.0, "clipping_bound": 0.1}
    else:
        name, method = "many images", "global-adapt"
        settings |= {"learning_rate": 2.0, "initial_bound": 5.0, "tolerance": 0.7}
    reasons = (
        Reason("scattering", ("features",)),
        Reason("linear model", ("features", "model")),
        _LARGE_SAMPLES,
        Reason(name, ("method", "features", *settings), (size if name == "many features" else _MANY,)),
    )
    return Advice(method, _SCATTERING, settings, reasons)


def _advise_table(num_examples: int, rows: int | None) -> Advice:
    batch = _batch_size(num_examples)
    settings = {
        "model": "logistic",
        "clipping_bound": 2.0,
        "learning_rate": 10.0 * min(1.0, batch / _QUIET_BATCH),
        "batch_size": batch,
        "epochs": _epochs(num_examples, batch),
        "schedule": "cosine",
    }
    bound = ("clipping_bound", "model", "features")
    reasons = (
        Reason("bound of rows", bound) if rows is None else Reason("bound of people", bound, (rows,)),
        _LARGE_SAMPLES,
        Reason("table", ("method", "features", *settings)),
    )
    return Advice(STANDARD, None, settings, reasons)


def _advise_unit_rows(
    num_examples: int,
    level: Mapping[str, Any],
    given: Mapping[str, Any],
    rows: _UnitRows,
    *,
    binning: str | None = None,
    features: str | None = None,
) -> Advice:
    """Return settings for a linear model of rows of norm about 1, of examples of one row or of several.

    Noise moves each weight by the same amount, and so each output of a row of norm 1, whatever the number of
    columns and of intervals, or of features. The learning rate is that at which noise in a prediction has the
    deviation of `rows`. The sum of all learning rates, which is how far the weights can learn, then follows
    from n and the noise alone. The bound is that of a row for people with several rows too: most have few,
    and noise costs more than shortening the sums of the others.
    """
    batch = int(given.get("batch_size", _batch_size(num_examples))) or num_examples
    epochs = float(given.get("epochs", _epochs(num_examples, batch)))
    bound = float(given.get("clipping_bound", rows.bound))
    asked = {name: given[name] for name in ("delta", "noise_multiplier", "steps") if name in given}
    plan = Plan(batch_size=batch, epochs=epochs).with_changes(asked).with_changes(level, accountant="rdp")
    resolved = plan.with_usual_noise().resolve(num_examples)
    rate, steps = resolved.sample_rate, resolved.steps
    schedule, average = "cosine", "tail"
    rates, noise = _sums_of_rates(schedule, count_left_out(average, _TAIL, steps), steps)
    noise *= math.sqrt(rows.weights) * resolved.noise_multiplier * bound / (rate * num_examples)
    learning_rate = rows.largest_rate
    if noise:
        learning_rate = min(learning_rate, rows.noise / noise)
    way, least = rates * learning_rate, rows.least_way
    if way < least and "learning_rate" not in given:
        raise SettingError(
            f"{num_examples:,} examples at this privacy, whose noise allows steps that add up to {way:.2g}; "
            f"expected {least:g} or more: with less a model does not learn {rows.least}. "
            f"Raise epsilon, or the number of examples, about {float(f'{least / way:.2g}'):,g} times, or "
            "give a --learning-rate.",
            field="epsilon",
        )
    settings = {
        "model": rows.model,
        "clipping_bound": bound,
        "learning_rate": float(f"{learning_rate:.3g}"),
        "batch_size": batch,
        "epochs": int(epochs) if epochs == int(epochs) else epochs,
        "momentum": _MOMENTUM,
        "schedule": schedule,
        "average": average,
        "average_share": _TAIL,
    }
    model, bounded, noisy, short = rows.reasons
    reasons = [
        Reason(model, ("binning", "model", "features")),
        Reason(bounded, ("clipping_bound", "model", "features", "binning"), (bound, 1 - bound / 2)),
        _LARGE_SAMPLES,
        Reason(noisy, ("method", "features", "binning", *settings), (rows.noise,)),
    ]
    if way < rows.short_way:
        reasons.append(Reason(short, ("learning_rate", "binning"), (num_examples, way, rows.short_way)))
    return Advice(STANDARD, features, settings, tuple(reasons), binning=binning)


def _sums_of_rates(schedule: str, left_out: int, steps: int) -> tuple[float, float]:
    """Sum of the learning rates of all steps, and root of the sum of squares of what each gradient moves.

    Both are over 1 - momentum, for a first rate of 1. A gradient moves the average of the weights by the
    rates of its step and of later ones, as momentum repeats it, each as often as weights after it are in the
    average.
    """
    rates = [SCHEDULES[schedule](step / steps) / (1 - _MOMENTUM) for step in range(steps)]
    moved, squares = 0.0, 0.0
    for step in reversed(range(steps)):
        moved = rates[step] * min(1.0, (steps - step) / (steps - left_out)) + _MOMENTUM * moved
        squares += (moved * (1 - _MOMENTUM)) ** 2
    return sum(rates), math.sqrt(squares)


def _batch_size(num_examples: int) -> int:
    """Batch size: about a twelfth of the examples, a power of two from 512 to 8192, at most all examples."""
    wanted = min(max(_SMALLEST_BATCH, num_examples / 12), _LARGEST_BATCH)
    return min(1 << round(math.log2(wanted)), num_examples)


def _epochs(num_examples: int, batch: int) -> int:
    """Number of epochs that gives enough steps, between 20 and 60."""
    return min(max(_LEAST_EPOCHS, math.ceil(_STEPS * batch / num_examples)), _MOST_EPOCHS)
