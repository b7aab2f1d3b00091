"""Epsilon of random ledgers, for everyone and by label, is that of dp_accounting alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import absl.logging
import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from equidp.kernel import epsilon as accounting
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event, Label, Share

COLUMNS = {"sex": ("0", "1"), "diabetes": ("0", "1"), "region": ("a", "b", "c")}


@dataclass(frozen=True)
class Line:
    """What a ledger holds, in plain numbers: shares are (rate, bound, row) by name of a label."""

    rate: float
    noise: float
    statistics: float | None
    count: int
    column: str = ""
    shares: tuple[tuple[str, tuple[float, float, float]], ...] = ()

    @property
    def event(self) -> Event:
        shares = tuple(Share(name, *numbers) for name, numbers in self.shares)
        return Event(self.rate, self.noise, self.statistics, shares=shares, column=self.column)


def draw_ledger(seed: int) -> tuple[list[Line], float]:
    """Runs by up to three columns, by hand or equal, with statistics or none, releases and a delta."""
    draw = np.random.default_rng(seed)

    def part() -> float:
        return float(draw.choice([0.0, 1.0, draw.uniform(1 / 16, 1)], p=[0.1, 0.4, 0.5]))

    lines = []
    columns = draw.choice([*COLUMNS], draw.integers(1, 4), replace=False)
    for _ in range(draw.integers(1, 5)):
        noise = float(draw.uniform(0.7, 4.0))
        statistics = float(noise * draw.uniform(1, 8)) if draw.random() < 0.4 else None
        count = int(draw.integers(0, 300))
        if draw.random() < 0.2:
            lines.append(Line(1.0, float(draw.uniform(5, 40)), None, int(draw.integers(1, 3))))
        elif draw.random() < 0.25:
            lines.append(Line(float(draw.uniform(0.005, 0.1)), noise, statistics, count))
        else:
            column = str(draw.choice(columns))
            rates = [float(draw.uniform(0.005, 0.1)) for _ in COLUMNS[column]]
            rates[draw.integers(len(rates))] *= float(draw.choice([0.0, 1.0]))
            shares = tuple(
                (name, (rate, part(), part())) for name, rate in zip(COLUMNS[column], rates, strict=True)
            )
            lines.append(Line(max(rates), noise, statistics, count, column, shares))
    return lines, float(10.0 ** -draw.uniform(4, 7))


def alone(lines: list[Line], delta: float, name: str, column: str = "", label: str = "") -> float:
    """Epsilon of an example of a label by dp_accounting's events; the label counts in its own column."""
    events = []
    for line in lines:
        rate, bound, row = line.rate, 1.0, 1.0
        if line.shares and line.column == column:
            rate, bound, row = dict(line.shares)[label]
        precision = (bound / line.noise) ** 2
        if line.statistics is not None:
            precision += (row / line.statistics) ** 2
        if rate and precision and line.count:
            gaussian = dp_accounting.GaussianDpEvent(1 / math.sqrt(precision))
            sampled = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
            events.append(dp_accounting.SelfComposedDpEvent(sampled, line.count))
    if not events:
        return 0.0
    whole = dp_accounting.ComposedDpEvent(events)
    absl.logging.set_verbosity(absl.logging.ERROR)  # a line for each order that does not converge
    renyi = float(RdpAccountant().compose(whole).get_epsilon(delta))
    if name == "rdp":
        return renyi
    width = max(accounting.FINE, 1e-5 * renyi)
    return min(
        renyi, float(PLDAccountant(value_discretization_interval=width).compose(whole).get_epsilon(delta))
    )


def check_ledger(seed: int, name: str) -> None:
    lines, delta = draw_ledger(seed)
    entries = [(line.event, line.count) for line in lines]
    bounds = []
    for column in {line.column for line in lines if line.shares}:
        own = {label: alone(lines, delta, name, column, label) for label in COLUMNS[column]}
        for label, expected in own.items():
            found = epsilon(entries, delta, name, Label(column, label))
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-12)
        bounds.append(max(own.values()))
    everyone = min(bounds) if bounds else alone(lines, delta, name)
    assert epsilon(entries, delta, name) == pytest.approx(everyone, rel=1e-6, abs=1e-12)
    assert epsilon(entries, delta, name) <= alone(lines, delta, name) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("seed", "name"),
    [(0, "rdp"), *(pytest.param(k, "rdp", marks=pytest.mark.soak) for k in range(1, 13)),
     *(pytest.param(k, "pld", marks=pytest.mark.soak) for k in range(200, 203))],
)  # fmt: skip
def test_a_ledger_has_the_epsilon_that_dp_accounting_alone_gives_it(seed, name):
    """Ledgers 0 to 12 have every kind of line: by two columns, with statistics or none, releases, no step,
    and shares whose rate, bound or row is 0."""
    check_ledger(seed, name)
