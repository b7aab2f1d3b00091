"""Sentences on wrong predicted risks: for which groups, from which causes, and what corrects them."""

from __future__ import annotations

from equidp.data.dataset import ALL
from equidp.evaluation.evaluation import Evaluation
from equidp.training.run import RunFacts

_MOST_NAMED = 3
RECALIBRATE = (
    "Recalibration (equidp train --recalibration 0.1, a share of epsilon) fits scale and shifts of the "
    "logits after training, and corrects what all groups share."
)


def risks_in_words(found: Evaluation, facts: RunFacts) -> list[str]:
    """Sentences on wrong predicted risks, and on what corrects them in this run; empty without any."""
    if not found.risks_off:
        return []
    texts = {
        each.group: f"{100 * each.predicted:.1f}% predicted where {100 * each.observed:.1f}% happened"
        for each in found.risks_off
    }
    overall = [texts.pop(ALL)] if ALL in texts else []
    named = [f"group {name}: {text}" for name, text in texts.items()][:_MOST_NAMED]
    listed = "; ".join([*overall, *named])
    return [f"Predicted risks of {found.positive!r} are off: {listed}. {_what_to_do(facts, bool(overall))}"]


def _what_to_do(facts: RunFacts, overall: bool) -> str:
    if facts.class_weighted:
        return (
            "This run weighs classes, which shifts risks towards the rarer one; they are those of the data "
            "where it is trained without --class-weight."
        )
    if not overall:
        return (
            "Over all test examples together they are not, so what acts on all groups alike, such as "
            "recalibration or a larger clipping bound, cannot correct this; inputs that tell these groups "
            "apart can."
        )
    if facts.private and facts.recalibrated:
        return (
            "The run is recalibrated, with noise; a larger share of epsilon for that (--recalibration), or a "
            "larger epsilon, lessens the noise. Test examples may also differ from training examples."
        )
    if facts.recalibrated:
        return "The run is recalibrated, without noise: test examples differ from training examples."
    if facts.private:
        return f"Bounding the lengths of gradients can shift risks. {RECALIBRATE}"
    if facts.private is False:
        return f"Nothing was clipped in this run, and no noise was added. {RECALIBRATE}"
    return RECALIBRATE
