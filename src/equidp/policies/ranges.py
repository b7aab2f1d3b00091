"""Ranges that the settings of methods are drawn from when methods are tuned: `metadata={"tune": ...}`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, final

import numpy as np

from equidp._validate import check_number
from equidp.errors import PolicyError, SettingError
from equidp.kernel.policy import Policy


class Range(ABC):
    """Distribution of the values of one setting; its text describes it to a reader."""

    @abstractmethod
    def draw(self, randomness: np.random.Generator) -> Any:
        """Return a value."""

    def rvs(self, random_state: np.random.RandomState) -> Any:
        """Return a value, for scikit-learn's ParameterSampler."""
        return self.draw(np.random.default_rng(random_state.randint(2**31)))


@final
@dataclass(frozen=True)
class Log(Range):
    """Numbers whose logarithm is uniform, to three digits.

    Attributes:
        low, high: ends, above 0.
        times: name of a setting of the same method that the number multiplies, or "" for none.

    Raises:
        SettingError: no range.

    Example:
        >>> Log(0.1, 10).draw(np.random.default_rng(0)), str(Log(1, 20, times="clipping_bound"))
        (1.88, '1 to 20 times clipping_bound, log-uniform')
    """

    low: float
    high: float
    times: str = ""

    def __post_init__(self) -> None:
        check_number("(0, inf)", low=self.low)
        check_number(f"({self.low}, inf)", high=self.high)

    def draw(self, randomness: np.random.Generator) -> float:
        return round_digits(np.exp(randomness.uniform(np.log(self.low), np.log(self.high))))

    def __str__(self) -> str:
        times = f" times {self.times}" if self.times else ""
        return f"{self.low:g} to {self.high:g}{times}, log-uniform"


@final
@dataclass(frozen=True)
class Uniform(Range):
    """Numbers between two, to two digits behind the point.

    Example:
        >>> Uniform(0.3, 0.95).draw(np.random.default_rng(0))
        0.71
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        check_number("(-inf, inf)", low=self.low)
        check_number(f"({self.low}, inf)", high=self.high)

    def draw(self, randomness: np.random.Generator) -> float:
        return round(float(randomness.uniform(self.low, self.high)), 2)

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}, uniform"


@final
@dataclass(frozen=True)
class OneOf(Range):
    """One of several values.

    Example:
        >>> OneOf(("tail", "ema")).draw(np.random.default_rng(0))
        'ema'
    """

    values: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.values, tuple) or not self.values:
            raise SettingError(f"values={self.values!r}; expected a tuple of values, such as (0.0, 0.9).")

    def draw(self, randomness: np.random.Generator) -> Any:
        return self.values[int(randomness.integers(len(self.values)))]

    def __str__(self) -> str:
        return ", ".join(str(value) for value in self.values)


def declared_ranges(policy: type[Policy]) -> Mapping[str, Range]:
    """Return the settings of a method that declare a range, with their ranges.

    Raises:
        PolicyError: another declaration, or a range that multiplies a setting which the method lacks.
    """
    own = {each.name: each.metadata.get("tune") for each in fields(policy)}  # type: ignore[arg-type]
    found = {name: within for name, within in own.items() if within is not None}
    for name, within in found.items():
        if not isinstance(within, Range):
            raise PolicyError(
                f"{policy.__name__} declares {within!r} for tuning {name}; expected a range of "
                'equidp.policies.ranges, such as metadata={"tune": Log(0.1, 10)}.',
                field=name,
            )
        if isinstance(within, Log) and within.times and within.times not in own:
            raise PolicyError(
                f"{policy.__name__} tunes {name} as a multiple of {within.times!r}, which it lacks; expected "
                f"one of {', '.join(own)}.",
                field=name,
            )
    return found


def round_digits(value: float, digits: int = 3) -> float:
    """Round to a number of significant digits."""
    return float(f"{value:.{digits}g}")
