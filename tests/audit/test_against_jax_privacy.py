"""Bounds are those of JAX Privacy's auditing module on the same counts, or tighter.

The module needs no JAX, but its package does, so it is loaded by its file. `make install` installs the
package without what it depends on; without it, or on Python 3.10, these tests skip.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from equidp.audit.bounds import (
    Rates,
    epsilon_from_rates,
    noise_from_rates,
)
from equidp.kernel.event import Event

GAUSSIAN = ((Event(1.0, 1.0), 1),)
RATES = [(900, 1000, 10, 1000), (1400, 2000, 300, 2000), (200, 200, 0, 200), (60, 100, 40, 100)]
DELTAS = [1e-5, 1e-3]


@pytest.fixture(scope="module")
def theirs():
    found = importlib.util.find_spec("jax_privacy")
    if found is None:
        pytest.skip("jax-privacy is not installed: pip install --no-deps jax-privacy (Python 3.11 or newer)")
    file = Path(next(iter(found.submodule_search_locations))) / "auditing.py"
    spec = importlib.util.spec_from_file_location("jax_privacy_auditing", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("counts", RATES)
def test_many_runs(theirs, counts, delta):
    auditor = _auditor(theirs, counts)
    at = theirs.Explicit(0.5)
    expected = auditor.epsilon_clopper_pearson(0.05, delta, one_sided=False, threshold_strategy=at)
    assert epsilon_from_rates(Rates(*counts), delta) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("counts", RATES[:3])
def test_many_runs_of_a_gaussian_are_not_looser(theirs, counts, delta):
    """Theirs pays for a search over thresholds, where ours is told one.

    Counts that say nothing are left out: jax-privacy 2.0.0 takes the size of a negative mu for a bound there.
    """
    expected = _auditor(theirs, counts).epsilon_from_gdp(0.05, delta)
    assert noise_from_rates(Rates(*counts), GAUSSIAN, delta) >= expected - 1e-4


def _auditor(theirs, counts):
    found, inside, false, outside = counts
    return theirs.CanaryScoreAuditor(
        np.repeat([1.0, 0.0], [found, inside - found]), np.repeat([1.0, 0.0], [false, outside - false])
    )
