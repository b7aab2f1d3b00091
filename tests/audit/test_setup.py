"""Measured arrays are kept under the facts that they follow from."""

from __future__ import annotations

import numpy as np
import pytest

from equidp.audit.setup import Measurements
from equidp.errors import CacheWarning
from equidp.training.plan import Plan
from support.toy import toy

PLAN = Plan(batch_size=8).resolve("dpsgd", 32)


def test_fresh_removes_what_was_kept_of_the_same_facts_alone(tmp_path):
    def measured(seed, *, fresh=False):
        return Measurements(tmp_path, {"seed": seed}, PLAN, toy(32), fresh=fresh)

    for seed in (0, 1):
        kept = measured(seed)
        kept.put("scores", {"rows": np.zeros(2)})
        kept.save("state", {"step": 3})
    fresh = measured(0, fresh=True)
    assert fresh.get("scores") is None
    assert fresh.load("state") is None
    assert measured(1).get("scores") is not None
    assert measured(1).load("state") == {"step": 3}


def test_an_audit_of_code_without_source_is_not_kept(tmp_path):
    space = {}
    exec("def loss(outputs, targets): return (outputs - targets[:, None]).sum(1)", space)
    plan = Plan(batch_size=8, loss=space["loss"]).resolve("dpsgd", 32)
    with pytest.warns(CacheWarning):
        kept = Measurements(tmp_path, {}, plan, toy(32))
    kept.put("scores", {"rows": np.zeros(2)})
    assert kept.get("scores") is None
    assert not list(tmp_path.iterdir())
