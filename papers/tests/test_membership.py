"""The attack succeeds where losses tell members from others, and guesses where they do not."""

from __future__ import annotations

import numpy as np
import pytest

from papers.membership import sensitive_success_rates


def test_members_are_found_as_far_as_their_scores_tell():
    generator = np.random.default_rng(0)
    members, groups = np.arange(4000) % 2 == 0, np.arange(4000) // 2000
    scores = generator.normal(size=4000) + np.where(members & (groups == 1), 2.0, 0.0)
    rates = sensitive_success_rates(scores, members, groups, ["hidden", "seen"])
    assert rates["hidden"] == pytest.approx(0.5, abs=0.05)
    assert rates["seen"] == pytest.approx(0.8413, abs=0.03)  # two normal deviations apart: Phi(1)
    assert rates["hidden"] < rates["all"] < rates["seen"]
