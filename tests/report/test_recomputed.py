"""Epsilon follows from the lines of code on a card."""

from __future__ import annotations

import contextlib
import io
import re
from html import unescape

import pytest

import equidp
from support.toy import make_trainer


def code_of(card: str) -> str:
    return re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]


def run_code(card: str) -> float:
    """Return the number that the code of a card prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code_of(card), {})
    return float(printed.getvalue())


@pytest.mark.soak
def test_epsilon_can_be_recomputed_from_the_card(tmp_path):
    trainer = make_trainer(method=equidp.DPSGDF(1.0), epochs=3)
    trainer.fit()
    trainer.ledger.release(trainer.run_id, "individual privacy", 30.0, lambda noise: None)
    run = trainer.run()
    equidp.write_card(run, tmp_path / "card.md")
    equidp.write_card(run, tmp_path / "card.html")
    card, page = ((tmp_path / name).read_text() for name in ("card.md", "card.html"))
    code = unescape(re.search(r"<pre>(.*?)</pre>", page, re.DOTALL)[1])
    assert code.strip() == code_of(card).strip()
    assert run_code(card) == pytest.approx(run.epsilon(), rel=1e-9)
    assert f"{run.epsilon():.6g}" in card


@pytest.mark.soak
def test_the_code_of_a_card_is_about_the_group_with_the_largest_epsilon_by_its_accountant(tmp_path):
    """Another group may have the largest epsilon by the run's accountant."""
    run = make_trainer(
        steps=10, epochs=None, noise_multiplier=0.764, accountant="rdp",
        rates={"a": 10.0, "b": 0.1}, bound_shares={"a": 0.1115},
    ).fit()  # fmt: skip
    by_rdp = run.epsilon_by_group()
    assert by_rdp["a"] < by_rdp["b"]
    equidp.write_card(run, tmp_path / "card.md")
    assert run_code((tmp_path / "card.md").read_text()) == pytest.approx(
        run.epsilon(accountant="pld"), rel=1e-9
    )
