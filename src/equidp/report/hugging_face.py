"""Card of a run for Hugging Face: the run's own card, with the guarantee as front matter for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from equidp._extras import require_extra
from equidp._provenance import versions
from equidp.data.dataset import uncovered_notes
from equidp.display import shown_epsilon
from equidp.kernel.ledger import is_step
from equidp.report.guarantee import mechanisms, privacy_unit
from equidp.training.run import Run


def hugging_face_card(run: Run, card: str, method: str, task: str | None, notes: Sequence[str]) -> str:
    """Return the text of a card in Markdown, whose front matter is YAML.

    Args:
        run: that the card is of.
        card: its text in Markdown, as `write_card` writes it.
        method: name of the method.
        task: as the hub names it, such as "tabular-classification"; None: the card names none.
        notes: sentences on how the data was prepared, and what epsilon does not cover.
    """
    with require_extra("export"):
        import yaml

    front = yaml.safe_dump(
        {**_hub_keys(run, task), "differential_privacy": _guarantee(run, method, notes)},
        sort_keys=False,
        allow_unicode=True,
        width=1_000_000,
    )
    return f"---\n{front}---\n\n{card}"


def _hub_keys(run: Run, task: str | None) -> dict[str, Any]:
    """Keys that the hub knows. A licence and a dataset on the hub are for the publisher to add."""
    of_task = {} if task is None else {"pipeline_tag": task}
    private = ["differential-privacy"] if math.isfinite(run.epsilon()) else []
    return {"library_name": "equidp", **of_task, "tags": [*private, "pytorch"]}


def _guarantee(run: Run, method: str, notes: Sequence[str]) -> dict[str, Any]:
    """Guarantee of the run as plain values; the hub has no keys of its own for it."""
    spent, version = run.epsilon(), versions()["equidp"]
    if math.isinf(spent):
        return {"guarantee": "none", "method": method, "library": f"equidp {version}"}
    return {
        "epsilon": shown_epsilon(spent),
        "delta": run.delta,
        "unit": privacy_unit(run.facts),
        "neighbouring": "add or remove one",
        "accountant": run.accountant,
        "method": method,
        "queries": [
            {
                "name": each.name,
                "mechanism": each.mechanism,
                "of": each.query,
                "count": each.times,
                "event": str(each.event),
            }
            for each in mechanisms(run)
        ],
        "steps": sum(steps for event, steps in run.entries if is_step(event)),
        "library": f"equidp {version}",
        "notes": list(notes),
        "not_covered": list(uncovered_notes(notes)),
    }
