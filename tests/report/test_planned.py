"""Lines on a plan state its epsilon by every accountant, and no epsilon is shown as none."""

from __future__ import annotations

import pytest

from equidp.kernel.epsilon import epsilon
from equidp.report.guarantee import planned_sentences
from equidp.training.plan import account


@pytest.mark.soak
def test_the_lines_name_every_accountants_epsilon_and_the_event():
    planned = account(1000, batch_size=50, epochs=3, noise_multiplier=1.5, delta=1e-4)
    text = "\n".join(planned_sentences(planned))
    for name in ("pld", "rdp", "rdp-classic"):
        value = epsilon([(planned.event, 60)], 1e-4, name)
        assert f"epsilon {value:.4f} at delta 0.0001 ({name})" in text
    assert "60 steps" in text
    assert str(planned.dp_event()) in text


def test_a_small_epsilon_is_not_shown_as_none():
    words = " ".join(
        planned_sentences(account(1000, batch_size=10, steps=1, noise_multiplier=1e4, delta=1e-9))
    )
    assert "epsilon 0.0000 " not in words
