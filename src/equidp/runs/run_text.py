"""The whole run.toml of a run that was chosen: every value, with its reason as a comment."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Item

from equidp._plain import without_defaults
from equidp.advice.advise import Advice
from equidp.advice.chosen_plan import ASKED, DEFAULT, RULE
from equidp.runs.config import CardTexts, TrainConfig
from equidp.runs.releases import BALANCED, CountsRelease
from equidp.runs.run_file import sections_by_field
from equidp.training.resolved import ResolvedPlan

_WHY = {ASKED: "given", RULE: "by rule", DEFAULT: "default"}
_FOLLOWS = ("rates", "bound_shares", "noise_multiplier", "sample_rate")
"""Options of a plan that follow from other options if they are not given."""

Commented = Mapping[str, tuple[Any, str]]
"""Field -> value, and the reason for it."""


def run_toml(
    config: TrainConfig, resolved: ResolvedPlan, advice: Advice | None = None, about: Iterable[str] = ()
) -> str:
    """Return run.toml with every value of a run, by which the same run can be trained.

    Args:
        config: configuration of the run, as it was chosen.
        resolved: its plan, worked out.
        advice: rules that chose it. None: other settings than recommended.
        about: sentences at the head, each a comment.
    """
    reasons = () if advice is None else (advice.evidence, advice.caution)
    found = comment_fields(config, resolved)
    document = tomlkit.document()
    for line in about:
        document.add(tomlkit.comment(line))
    for name, section in found.items():
        table = tomlkit.table()
        if name == "training":
            for sentence in reasons:
                for line in textwrap.wrap(sentence, 100):
                    table.add(tomlkit.comment(line))
        for field, (value, why) in section.items():
            table.add(field, _item(value, why))
        document.add(name, table)
        if name == "table" and config.data.recipe.columns:
            document.add("column", _columns(config))
    return tomlkit.dumps(document)


def comment_fields(config: TrainConfig, resolved: ResolvedPlan) -> dict[str, Commented]:
    """Return [table], [privacy], [training] and [card] of a run: its fields with values and reasons."""
    found: dict[str, dict[str, tuple[Any, str]]] = {
        "table": {"data": (config.data.name, _WHY[ASKED])},
        "privacy": {},
        "training": {"method": (config.plan.method_name, _why(config, "method"))},
        "card": {},
    }
    recipe = config.data.recipe.to_plain()
    recipe.pop("columns", None)
    positive = config.decision.positive
    table = {**recipe, **({} if positive is None else {"positive": positive})}
    found["table"] |= {name: (value, "") for name, value in table.items()}
    sections = sections_by_field()
    for row in config.setting_rows(resolved):
        if row.value is None or (row.name in _FOLLOWS and getattr(config.plan, row.name) is None):
            continue
        found[sections[row.name]][row.name] = (_plain_value(row.value), _WHY.get(row.origin, row.origin))
    if config.plan.risk is not None:
        risk = [value for value in vars(config.plan.risk).values() if value is not None]
        found["privacy"]["risk"] = (risk, _WHY[ASKED])
    released = {name for each in config.plan.releases for name in each.to_options()}
    for name, value in _fields_beside_plan(config).items():
        found[sections[name]][name] = (value, "" if name in released else _WHY[ASKED])
    found["training"]["seed"] = (config.data.seed, "of the split and the initial weights")
    return {name: section for name, section in found.items() if section}


def _fields_beside_plan(config: TrainConfig) -> dict[str, Any]:
    """Return what was given besides the plan, by field: ledger, releases, decision, execution and card."""
    given: dict[str, Any] = {}
    if config.ledger is not None:
        limit = {"ledger_epsilon": config.ledger.epsilon, "ledger_delta": config.ledger.delta}
        given |= {"ledger": str(config.ledger.path), **limit}
    given |= {"metric": config.metric, "threshold": config.decision.threshold}
    for release in config.plan.releases:
        given |= release.to_options()
        if isinstance(release, CountsRelease):
            given |= {"class_weight": BALANCED} if release.balanced else {}
            given |= {"threshold": "base-rate"} if release.base_rate_threshold else {}
    differing = without_defaults(config)
    given |= {name: differing[name] for name in ("engine", "checkpoint_seconds") if name in differing}
    given |= without_defaults(config.card)
    return {
        name: value for name, value in given.items() if value is not None and name not in CardTexts.NOT_GIVEN
    }


def _why(config: TrainConfig, name: str) -> str:
    return _WHY.get(config.card.origins.get(name, ""), "")


def _plain_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _columns(config: TrainConfig) -> Item:
    columns = tomlkit.table(is_super_table=True)
    for name, column in config.data.recipe.columns.items():
        table = tomlkit.table()
        for field, value in column.to_plain().items():
            table.add(field, _item(value, ""))
        columns.add(name, table)
    return columns


def _item(value: Any, why: str) -> Item:
    if isinstance(value, Mapping):
        item: Item = tomlkit.inline_table()
        item.update(value)  # type: ignore[attr-defined]
    else:
        item = tomlkit.item(value)
    return item.comment(why) if why else item
