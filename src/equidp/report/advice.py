"""Advice on method and settings, in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equidp.advice.advise import Advice


def settings_text(settings: Mapping[str, Any]) -> str:
    """Text of settings, such as "batch size 512, learning rate 2.5"."""
    texts = {
        name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in settings.items()
    }
    return ", ".join(f"{name.replace('_', ' ')} {text}" for name, text in texts.items())


def advice_sentences(advice: Advice, begin: str = "auto takes") -> list[str]:
    """Lines on what is advised and why, without delta, which other lines report with epsilon.

    Args:
        advice: from `advise`.
        begin: of the first line.
    """
    shown = settings_text({name: value for name, value in advice.settings.items() if name != "delta"})
    features = "" if advice.features is None else f" on {advice.features} features"
    taken = f"{advice.method}{features}{f': {shown}' if shown else ''}"
    return [f"{begin} {taken}.", *(f"- {reason}" for reason in reasons_of(advice))]


def reasons_of(advice: Advice) -> list[str]:
    """Sentences on why, and on the settings that were given."""
    given = f"Given: {settings_text(advice.given)}." if advice.given else ""
    return [sentence for sentence in (advice.evidence, advice.caution, given) if sentence]
