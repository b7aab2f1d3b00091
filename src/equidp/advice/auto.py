"""Default method and settings for each kind of data: the settings with the best results on such data.

Kind and settings follow from public facts alone: the shape of an input, the number of examples, epsilon. So
the choice reads no data and costs no privacy. docs/advise.md has the results.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from equidp.data.dataset import DataSource, GroupedDataset
from equidp.data.features import FEATURES, WithFeatures
from equidp.data.scattering import SMALLEST, number_of_features
from equidp.policies.methods import STANDARD
from equidp.training.plan import Plan

AUTO = "auto"
"""The name of this choice, where a method is asked for."""

_SMALLEST_BATCH, _LARGEST_BATCH = 512, 8192
_QUIET_BATCH = 2048
"""Below it, noise moves the weights of a linear model on standardised columns too far at learning rate 10."""
_MANY = 10_000
_WIDE = 10_000
"""Scattering features of an image from which on steps are short; MNIST has 3,969, CIFAR-10 15,552."""
_STEPS, _LEAST_EPOCHS, _MOST_EPOCHS = 360, 20, 60


class Reason(NamedTuple):
    """Sentence on why settings were chosen.

    Attributes:
        text: the sentence.
        about: names of the settings that it holds for; with another value of one of them it does not.
    """

    text: str
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Choice:
    """Method, features and settings for one kind of data.

    Attributes:
        method: a name from `METHODS`.
        features: a name from `FEATURES`; None: inputs as they are.
        settings: fields of `Plan` and settings of the method, by name.
        reasons: for each choice; none on settings that the user gave.

    Example:
        >>> from equidp.data import open_source
        >>> choice = choose(open_source("digits").split(seed=0).train)
        >>> choice.method, choice.features, choice.plan(Plan()).batch_size
        ('dpsgd', 'scattering', 512)
    """

    method: str
    features: str | None
    settings: Mapping[str, Any]
    reasons: tuple[Reason, ...]

    def as_asked(self, asked: Mapping[str, Any], features: str | None) -> Choice:
        """Return the choice with the user's settings and features, and the reasons that still hold.

        Args:
            asked: settings by name, without settings of other methods.
            features: name of the features that are trained on; None: inputs as they are.
        """
        other = {name for name, value in asked.items() if self.settings.get(name) != value}
        other |= {"features"} if features != self.features else set()
        reasons = [reason for reason in self.reasons if other.isdisjoint(reason.about)]
        if asked:
            reasons.append(Reason(f"Asked for: {_settings_text(asked)}."))
        return replace(self, features=features, settings={**self.settings, **asked}, reasons=tuple(reasons))

    def plan(self, asked: Plan) -> Plan:
        """Plan with these settings and `asked` delta, loss, class weights and noise; `asked` without any."""
        if not self.settings:
            return asked
        kept = Plan(delta=asked.delta, loss=asked.loss, class_weight=asked.class_weight)
        return replace(kept, noise_multiplier=asked.noise_multiplier).with_changes(self.settings)

    def source(self, asked: DataSource) -> DataSource:
        """Source with these features as inputs; `asked` itself if it has features or the choice has none."""
        known = self.features is None or isinstance(asked, WithFeatures)
        return asked if known else WithFeatures(asked, str(self.features))

    def in_words(self) -> list[str]:
        """Lines for a reader, without delta, which other lines report with epsilon."""
        shown = _settings_text({name: value for name, value in self.settings.items() if name != "delta"})
        features = "" if self.features is None else f" on {self.features} features"
        taken = f"{self.method}{features}{f': {shown}' if shown else ''}"
        return [f"auto takes {taken}.", *(f"- {reason.text}" for reason in self.reasons)]


def _settings_text(settings: Mapping[str, Any]) -> str:
    """Text of settings, such as "batch size 512, learning rate 2.5"."""
    texts = {
        name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in settings.items()
    }
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in texts.items())


def choose(train: GroupedDataset) -> Choice:
    """Choose settings for this kind of data, from the shape of an input and the number of examples alone."""
    inputs = train.inputs
    if train.target_bounds is not None:
        return _as_asked("numbers to predict")
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return _as_asked("inputs of several tensors, or of whole numbers")
    if train.rows is None and len(train.input_shape) == 3 and min(train.input_shape[1:]) >= SMALLEST:
        return _images(len(train), train.input_shape)
    return _table(len(train), train.rows)


def images_of(source: DataSource, seed: int) -> GroupedDataset | None:
    """Training images of a source with features that `choose` may choose; None for other sources."""
    if isinstance(source, WithFeatures) and source.features in FEATURES:
        return source.source.split(seed).train
    return None


def _as_asked(what: str) -> Choice:
    """Choice of DP-SGD with the settings of the user's plan."""
    return Choice(STANDARD, None, {}, (Reason(f"DP-SGD as usual: no runs on {what} stand behind a choice."),))


_LARGE_SAMPLES = Reason(
    "Large samples, and a learning rate that ends at zero: the noise of single steps averages out, and "
    "little of it is left at the end.",
    ("batch_size", "schedule"),
)


def _images(num_examples: int, shape: tuple[int, ...]) -> Choice:
    batch, size = _batch(num_examples), number_of_features(shape)
    settings = {
        "model": "logistic",
        "clipping_bound": 1.0,
        "momentum": 0.9,
        "batch_size": batch,
        "epochs": _epochs(num_examples, batch),
        "schedule": "linear",
    }
    reasons = (
        Reason(
            "Scattering features: fixed filters find edges and textures, which a private network would have "
            "to learn through noise (Tramer and Boneh 2021). They read no training data, so they cost no "
            "privacy.",
            ("features",),
        ),
        Reason(
            "A linear model on them: fewer parameters take less noise, and rare classes are no harder to "
            "fit.",
            ("features", "model"),
        ),
        _LARGE_SAMPLES,
    )
    if num_examples < _MANY:
        why = (
            f"DP-SGD: with fewer than {_MANY:,} examples, noise is too large for methods that keep lengths "
            "of gradients. On 1,229 digits it costs the rare class less than Global-Adapt."
        )
        settings |= {"learning_rate": 1.0}
        return Choice(STANDARD, "scattering", settings, (*reasons, _of_all(why, settings)))
    if size > _WIDE:
        why = (
            f"DP-SGD with short steps: {size:,} features have long gradients, and noise in as many "
            "directions. At epsilon 3 this finds the gender of 87.4% of UTKFace's faces (88.8% without "
            "privacy), the settings for fewer features of 82.5%."
        )
        settings |= {"learning_rate": 4.0, "clipping_bound": 0.1}
        return Choice(STANDARD, "scattering", settings, (*reasons, _of_all(why, settings)))
    why = (
        "Global-Adapt: it scales all gradients by one factor, so that the long ones of rare classes count in "
        "full. MNIST with 500 eights has 97.9% so at epsilon 5.43, and its eights 89.9%. "
        "DP-SGD's best of eight random settings reaches 97.7% and 88.1%, DPSGD-F's 97.5% and 90.6%."
    )
    settings |= {"learning_rate": 2.0, "initial_bound": 5.0, "tolerance": 0.7}
    return Choice("global-adapt", "scattering", settings, (*reasons, _of_all(why, settings)))


def _of_all(text: str, settings: Mapping[str, Any]) -> Reason:
    """Reason that holds with these settings and features together, which its runs had."""
    return Reason(text, ("features", *settings))


def _table(num_examples: int, rows: int | None) -> Choice:
    batch = _batch(num_examples)
    settings = {
        "model": "logistic",
        "clipping_bound": 2.0,
        "learning_rate": 10.0 * min(1.0, batch / _QUIET_BATCH),
        "batch_size": batch,
        "epochs": _epochs(num_examples, batch),
        "schedule": "cosine",
    }
    longer = (
        "most gradients of a row of up to some tens of standardised columns are shorter. Those of a rare "
        "class can be longer"
        if rows is None
        else f"a person's gradient is the sum over up to {rows:,} rows, and is longer than it for some people"
    )
    reasons = (
        Reason(
            f"Clipping bound 2: {longer}; what clipping shifts in predicted risks, recalibration corrects "
            "where it is asked for.",
            ("clipping_bound", "model", "features"),
        ),
        _LARGE_SAMPLES,
        _of_all(
            "DP-SGD: with these settings no method that evens out the cost does clearly better.", settings
        ),
    )
    return Choice(STANDARD, None, settings, reasons)


def _batch(num_examples: int) -> int:
    """Batch size: about a twelfth of the examples, a power of two from 512 to 8192, at most all examples."""
    wanted = min(max(_SMALLEST_BATCH, num_examples / 12), _LARGEST_BATCH)
    return min(1 << round(math.log2(wanted)), num_examples)


def _epochs(num_examples: int, batch: int) -> int:
    """Number of epochs that gives enough steps, between 20 and 60."""
    return min(max(_LEAST_EPOCHS, math.ceil(_STEPS * batch / num_examples)), _MOST_EPOCHS)
