"""An audit of private preprocessing alone: one extreme row more shows no more than was paid for.

The attack knows the table, the row and the rule, and sees every noisy figure that is released. It adds up the
log of how much likelier each is with the row than without, which no other test beats.
"""

import numpy as np
import pandas as pd
import pytest

from equidp.audit.bounds import Rates, epsilon_from_rates, noise_from_rates
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event
from equidp.kernel.noise import SeededRandomness
from equidp.tables import fit, release as module
from equidp.tables.encode import CELLS, Intervals
from equidp.tables.fit import fit_encoder
from equidp.tables.intervals import BINNINGS
from equidp.tables.release import Release

SIGMA, DELTA = 0.5, 1e-5
LEVEL = 0.999  # a sound mechanism fails one of a thousand such audits
TABLE = pd.DataFrame(
    {
        "pay": np.linspace(1000.0, 3000.0, 40),
        "debt": np.linspace(-5.0, 5.0, 40),
        "gaps": np.linspace(0.0, 1.0, 40),
        "job": ["cook", "clerk"] * 20,
    }
)
SHARES = {"all": 1.0, "texts": 0.25, "edges": 1.0}
ROWS = {
    "huge": {"pay": 1e18, "debt": -1e18, "gaps": 1e9, "job": "astronaut"},
    "missing": {"pay": 1e18, "debt": np.nan, "gaps": np.nan, "job": None},
}


class Watched:
    """A release whose last row is there or not, and what its figures tell about that row."""

    def __init__(self, seed, *, inside):
        self.release = Release(SIGMA, SeededRandomness(seed))
        self.inside, self.evidence = inside, {"texts": 0.0, "all": 0.0}

    def counts(self, codes, *, cells, share):
        def exact(rows):
            return np.stack([np.bincount(column[column >= 0], minlength=cells) for column in rows.T])

        released = self.release.counts(self._seen(codes), cells=cells, share=share)
        return self._noted(released, exact(codes[:-1]), exact(codes[-1:]), texts=cells == CELLS)

    def _seen(self, rows):
        return rows if self.inside else rows[:-1]

    def _noted(self, released, sure, row, *, texts=False):
        found = ((released.values - sure) * row).sum() - (row**2).sum() / 2
        for name in ("texts", "all") if texts else ("all",):
            self.evidence[name] += found / released.deviation**2
        return released


def audited(row, runs, binning="standard"):
    """Return the epsilon that the attack proves over the one claimed: of all figures, of texts, of edges."""
    table = pd.concat([TABLE, pd.DataFrame([row])], ignore_index=True)
    table["job"] = table["job"].astype(object).where(table["job"].notna(), None)
    names = [name for name in SHARES if name != "edges" or binning == "cut"]
    said = {name: {True: 0, False: 0} for name in names}
    with_row, without = (quantiles(each) for each in (table, TABLE))
    for seed in range(2 * runs):
        watched = Watched(seed, inside=seed < runs)
        rows = np.arange(len(table))
        encoder = fit_encoder(table, rows, {}, "category", BINNINGS[binning], release=watched)
        if binning == "cut":
            watched.evidence["edges"] = distance(encoder, without) - distance(encoder, with_row)
        for name, found in watched.evidence.items():
            said[name][watched.inside] += int(found > 0)
    return {name: over_claim(Rates(said[name][True], runs, said[name][False], runs), name) for name in said}


def quantiles(table):
    """Exact edges of each column of numbers, as if nothing had to be paid for them."""
    numbers = table.select_dtypes("number")
    columns = fit_encoder(numbers, np.arange(len(table)), {}, "category", BINNINGS["cut"]).columns
    return {column.name: column for column in columns}


def distance(encoder, exact):
    """Number of exact edges that an encoder does not have."""
    columns = (column for column in encoder.columns if isinstance(column, Intervals))
    return sum(len(set(exact[column.name].edges[-1]) - set(column.edges[-1])) for column in columns)


def over_claim(rates, name):
    """The larger of two lower bounds, of any mechanism and of Gaussian ones, over the epsilon claimed."""
    claim = ((Event(1.0, SIGMA / np.sqrt(SHARES[name])), 1),)
    proven = noise_from_rates(rates, claim, DELTA, LEVEL)
    return max(epsilon_from_rates(rates, DELTA, LEVEL), proven) / epsilon(claim, DELTA)


def halve_the_noise_of_jobs(monkeypatch):
    """Plant a fault: half the noise in the counts of one column."""
    sound = module.add_noise

    def faulty(sums, *rest):
        exact = sums[0].clone()
        sound(sums, *rest)
        if len(exact) == CELLS:
            sums[0].add_(exact).div_(2)

    monkeypatch.setattr(module, "add_noise", faulty)


def take_edges_unpaid(monkeypatch):
    """Plant a fault: edges of intervals from the rows as they are."""

    def faulty(columns, release, *_, **__):
        return quantiles(columns if release.inside else columns.iloc[:-1])

    monkeypatch.setattr(fit, "private_numbers", faulty)


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:the released statistics")
@pytest.mark.parametrize(("name", "binning"), [("huge", "cut"), ("missing", "standard")])
def test_one_extreme_row_shows_no_more_than_was_paid_for(name, binning):
    found = audited(ROWS[name], 400, binning)
    assert found.pop("edges", 0.0) <= 1
    assert all(0.4 < bound <= 1 for bound in found.values()), found


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:the released statistics")
def test_a_short_audit_finds_half_the_noise_in_one_column(monkeypatch):
    halve_the_noise_of_jobs(monkeypatch)
    assert audited(ROWS["huge"], 200)["texts"] > 1


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:the released statistics")
def test_a_short_audit_finds_edges_that_nothing_was_paid_for(monkeypatch):
    take_edges_unpaid(monkeypatch)
    assert audited(ROWS["huge"], 100, "cut")["edges"] > 1
