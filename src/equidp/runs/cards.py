"""The model card of a run on disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equidp.accounting.budget import PrivacyBudget
from equidp.data import Recipe
from equidp.display import shown_epsilon
from equidp.evaluation.effects import Effect, column_effects
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.predictions import has_diverged
from equidp.policies.methods import method_named
from equidp.report.card import cost_sentence, write_card
from equidp.report.evaluation import split_noisy_means
from equidp.runs import layout
from equidp.runs.config import RunData, TrainConfig
from equidp.tables.encode import TableEncoder
from equidp.training.run import Run

DIVERGED = (
    "Training diverged: the weights are not numbers, and the model predicts nothing. What it spent is spent."
)

_RECIPE = (
    "How the table is read (kinds of columns, marks of missing values, people, bounds) counts as public. "
    "Where that was read off its rows, as equidp inspect proposes it, epsilon does not cover it."
)


def write_cards(
    place: Path,
    run: Run,
    evaluation: Evaluation,
    config: TrainConfig,
    facts: dict[str, Any],
    ledger_check: str,
    budget: PrivacyBudget | None,
) -> None:
    """Write the model card of a run into its folder, as a page and as Markdown.

    Args:
        place: folder of the run, whose model and released values are there.
        run, evaluation, config: that the card describes.
        facts: that followed from configuration and data.
        ledger_check: checksum of the ledger's last line.
        budget: that the run was charged to; None: none.
    """
    recipe, encoder = config.data.recipe, layout.read_encoder(place, config)
    details = {
        "method's name": f"{config.method}: {method_named(config.method).summary}",
        "input shape": tuple(facts["input_shape"]),
        **({} if recipe.weight is None else {"column of public weights": recipe.weight}),
        "last checksum of the ledger": ledger_check,
        "test examples": "held out of the same data",
    }
    if config.card.reasons:
        details["why these settings"] = " ".join(config.card.reasons)
    if config.target.risk is not None:
        details["noise was calibrated to the risk"] = str(config.target.risk)
    for each in config.all_releases:
        details |= each.card_entries(config.target.epsilon, place, units_of(recipe))
    details |= _data_entries(config.data, encoder)
    composition = ""
    if budget is not None and config.budget is not None:
        composition = _composition_sentence(budget, units_of(recipe))
        details["budget"] = f"{config.budget.path.name}; with this run, {budget}"
    further = [_RECIPE] if recipe.target and encoder is not None else []
    further += [DIVERGED] if has_diverged(run.model) else []
    further += unmeasured_costs(run)
    effects: tuple[Effect, ...] = ()
    if encoder is not None:
        classes = facts["class_names"]
        effects = column_effects(encoder, run.model, len(classes), config.decision.index(classes))
    released = layout.read_released(place)
    clear, too_noisy = split_noisy_means(released, run.epsilon())
    write_card(
        run,
        place / layout.PAGE,
        place / layout.CARD,
        evaluation=evaluation,
        data=facts["name"],
        notes=(*facts["notes"], *further),
        released={_mean_label(row): row["mean"] for row in clear},
        too_noisy=too_noisy,
        remarks=config.card.notes,
        audited={each.name: each.audited for each in config.all_releases},
        group_risks={row["group"]: row["risk"] for row in released if "risk" in row},
        details=details,
        plan=config.setting_rows(run.facts.plan) if config.card.origins and run.facts.plan else (),
        effects=effects,
        composition=composition,
        hashes={f"{layout.MODEL} (SHA-256)": layout.file_digest(place / layout.MODEL)},
    )


def _data_entries(data: RunData, encoder: TableEncoder | None) -> dict[str, str]:
    """Return the card's entries on the columns and the test examples of a run's data.

    Args:
        data: that the run was trained on.
        encoder: of its table; None: the data is no table, and entries are on named columns alone.
    """
    recipe = data.recipe
    if encoder is None:
        named = {"target": recipe.target, "group columns": ", ".join(recipe.group)}
        return {name: value for name, value in named.items() if value}
    if recipe.target is None:
        return {}
    ends = {name: [repr(end).removesuffix(".0") for end in span] for name, *span in recipe.bounds}
    bounds = [f"{name}={low}:{high}" for name, (low, high) in ends.items()]
    return {
        "target": recipe.target,
        "group columns": ", ".join(recipe.group),
        "input columns": ", ".join(column.name for column in encoder.columns),
        "public bounds": ", ".join(bounds) or "none",
        "missing values": "a category of their own" if recipe.missing == "category" else "refused",
        **({} if recipe.person is None else {"column of people": recipe.person}),
        "test examples": f"{units_of(recipe)} held out of the same file, by seed {data.seed}, a share of "
        f"about {recipe.test_share:g}",
    }


def unmeasured_costs(run: Run) -> list[str]:
    """Sentence on costs that a run does not measure; none for a run without privacy."""
    plan = run.facts.plan
    if plan is None or not run.facts.classes or not math.isfinite(run.epsilon()):
        return []
    return [cost_sentence(plan.method)]


def _composition_sentence(budget: PrivacyBudget, units: str) -> str:
    """Sentence on the epsilon that this run and all others in its budget have spent together."""
    spent = shown_epsilon(budget.spent())
    return (
        f"Together with the other runs in its budget so far, this run has spent epsilon {spent:g} at delta "
        f"{budget.delta:g}: that is what holds for {units} in the data of all of them. Runs outside the "
        "budget are not known here."
    )


def units_of(recipe: Recipe) -> str:
    """Name of examples in the card: rows or people."""
    return "rows" if recipe.person is None else "people"


def _mean_label(row: Mapping[str, Any]) -> str:
    """The name of a released mean, with its standard error."""
    return (
        f"estimated mean epsilon of the training examples of {row['group']} (standard error "
        f"{row['standard_error']:.2g})"
    )
