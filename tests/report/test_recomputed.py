"""Epsilon follows from the lines of code on a card."""

from __future__ import annotations

import contextlib
import io
import re
from html import unescape

import pytest

import equidp
from support.toy import make_trainer


@pytest.mark.soak
def test_epsilon_can_be_recomputed_from_the_card(tmp_path):
    trainer = make_trainer(method=equidp.DPSGDF(1.0), epochs=3)
    trainer.fit()
    trainer.ledger.release(trainer.run_id, "individual privacy", 30.0, lambda noise: None)
    run = trainer.run()
    equidp.write_card(run, tmp_path / "card.md")
    equidp.write_card(run, tmp_path / "card.html")
    card, page = ((tmp_path / name).read_text() for name in ("card.md", "card.html"))
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    assert unescape(re.search(r"<pre>(.*?)</pre>", page, re.DOTALL)[1]).strip() == code.strip()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    assert float(printed.getvalue()) == pytest.approx(run.epsilon(), rel=1e-9)
    assert f"{run.epsilon():.6g}" in card
