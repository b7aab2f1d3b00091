"""The model card of a run on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equidp.data import Recipe
from equidp.display import Noted
from equidp.evaluation.effects import column_effects
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.predictions import has_diverged
from equidp.ledger.ledger import Ledger
from equidp.policies.methods import method_named
from equidp.report.card import STATEMENTS, CardContent, write_content
from equidp.report.guarantee import Guarantee, together_sentence
from equidp.runs.config import TrainConfig
from equidp.runs.folder import CARD, MODEL, PAGE, RunFolder, file_digest
from equidp.tables.encode import TableEncoder
from equidp.training.run import Run

DIVERGED = (
    "Training diverged: the weights are not numbers, and the model predicts nothing. What it spent is spent."
)
_RECIPE = (
    "How the table is read (kinds of columns, marks of missing values, people, ranges) counts as public. If "
    "it was read off the rows, as equidp inspect proposes it, epsilon does not cover it."
)
_UNMEASURED = (
    "This card does not measure what privacy cost each group: that takes models trained without privacy on "
    "rows that may be read without it (equidp compare DATA --methods {method})."
)


def write_cards(
    place: RunFolder,
    folder: Path,
    run: Run,
    evaluation: Evaluation,
    config: TrainConfig,
    facts: dict[str, Any],
    ledger: Ledger,
) -> None:
    """Write the model card of a run, as a page and as Markdown.

    Args:
        place: files of the run, with its encoder and released values.
        folder: folder that the cards are written to, with the model.
        run, evaluation, config: run, evaluation and configuration that the card describes.
        facts: facts that followed from configuration and data.
        ledger: ledger that counts the run, settled.
    """
    recipe, encoder, plan = config.data.recipe, place.read_encoder(config), config.plan
    guarantee, classes = Guarantee.of(run), facts["class_names"]
    settings: dict[str, object] = {
        "method": f"{plan.method_name}: {method_named(plan.method).summary}",
        "input shape": tuple(facts["input_shape"]),
        "checksum of the run's last line in the ledger": ledger.last_check(facts["run"]),
    }
    if plan.risk is not None:
        settings["noise was calibrated to the risk"] = str(plan.risk)
    for each in plan.releases:
        settings |= each.card_entries()
    notes = [*facts["notes"]]
    notes += [_RECIPE] if recipe.target and encoder is not None else []
    notes += [DIVERGED] if has_diverged(run.model) else []
    notes += [_UNMEASURED.format(method=plan.method_name)] if guarantee.private else []
    together = "" if config.ledger is None else together_sentence(ledger, run.delta, units_of(recipe))
    clear, too_noisy = split_noisy_means(place.read_released(), guarantee.epsilon)
    content = CardContent(
        title=config.card.title or (f"Prediction of {recipe.target}" if recipe.target else ""),
        data=facts["name"],
        evaluation=evaluation,
        notes=notes,
        statements={name: getattr(config.card, name) for name in STATEMENTS},
        remarks=config.card.notes,
        columns=_column_facts(config, encoder),
        settings=settings,
        released={row["group"]: Noted(row["mean"], f"± {row['standard_error']:.2g}") for row in clear},
        too_noisy=[row["group"] for row in too_noisy],
        group_risks={row["group"]: row["risk"] for row in [*clear, *too_noisy] if "risk" in row},
        together=together,
        hashes={f"{MODEL} (SHA-256)": file_digest(folder / MODEL)},
        plan=config.setting_rows(run.facts.plan) if config.card.origins and run.facts.plan else (),
        effects=()
        if encoder is None
        else column_effects(encoder, run.model, len(classes), config.decision.index(classes)),
        dates=[
            name
            for name, column in recipe.columns.items()
            if column.kind == "date" and column.format != "duration"
        ],
    )
    write_content(run, content, folder / PAGE, folder / CARD)


def split_noisy_means(
    released: list[dict[str, Any]], spent: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return released means of groups with small noise, and those that their noise hides.

    Args:
        released: group, mean and standard_error of each.
        spent: epsilon of the run, which no mean can exceed; a standard error above half of it hides the mean.
    """
    clear = [row for row in released if row["standard_error"] <= spent / 2]
    return clear, [row for row in released if row not in clear]


def _column_facts(config: TrainConfig, encoder: TableEncoder | None) -> dict[str, object]:
    """Return the card's facts about the columns and the test examples.

    Args:
        config: configuration of the run.
        encoder: encoder of its table. None: the data is no table.
    """
    data, recipe = config.data, config.data.recipe
    named: dict[str, object] = {"target": recipe.target, "group columns": ", ".join(recipe.group)}
    if encoder is None or recipe.target is None:
        return {**named, "test examples": "held out of the same data"}
    ends = {name: [repr(end).removesuffix(".0") for end in span] for name, span in recipe.ranges.items()}
    return {
        **named,
        "input columns": ", ".join(column.name for column in encoder.columns),
        "public ranges": ", ".join(f"{name} {low} to {high}" for name, (low, high) in ends.items()),
        "missing values": "a category of their own" if recipe.missing == "category" else "refused",
        "column of people": recipe.person,
        "most rows of a person": recipe.rows_per_person,
        "column of public weights": recipe.weight,
        "test examples": f"about {recipe.test_share:g} of the {units_of(recipe)}, drawn by seed {data.seed}",
    }


def units_of(recipe: Recipe) -> str:
    """Return the name of examples on the card: rows or people."""
    return "rows" if recipe.person is None else "people"
