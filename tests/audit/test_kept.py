"""Measured arrays are kept under the facts that they follow from."""

from __future__ import annotations

import numpy as np

from equidp.audit.kept import Kept


def test_fresh_removes_what_was_kept_of_the_same_facts_alone(tmp_path):
    first, other = ({"seed": seed} for seed in (0, 1))
    for facts in (first, other):
        kept = Kept(tmp_path, facts)
        kept.put("scores", {"rows": np.zeros(2)})
        kept.save("state", {"step": 3})
    fresh = Kept(tmp_path, first, fresh=True)
    assert fresh.get("scores") is None
    assert fresh.load("state") is None
    assert Kept(tmp_path, other).get("scores") is not None
    assert Kept(tmp_path, other).load("state") == {"step": 3}
