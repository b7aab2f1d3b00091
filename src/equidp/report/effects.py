"""Effects of columns on a model's outputs, as blocks of a card: a plot and a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from equidp.display import Cell, Column, Table
from equidp.evaluation.effects import Effect
from equidp.report.document import Block, Heading, Paragraph
from equidp.report.plots.effects import MOST_PANELS, curves, number_text
from equidp.report.plots.style import drawn_for_page

_FREE = (
    "Each column is cut into intervals or texts, and each of them adds a number to the model's output: "
    "{what}. They follow from the released weights, so they cost no privacy. They are effects beside all "
    "other columns, not causes, and noise of training is in them, most where training rows are few."
)
_HIDDEN = (
    "Of {names}, edges or texts come from training rows, which epsilon does not cover. They are left out "
    "here, and intervals are numbered from the lowest to the highest. Public bounds or private "
    "preprocessing would show them; equidp.runs.saved.open_run(folder).effects() has them in the folder "
    "of the run."
)
_SPREAD = (
    "Spread: the root of the mean square over the intervals or texts, each counted alike{classes}. "
    "Numbers in brackets: what is added there, beside the mean of the column."
)


def effect_blocks(effects: Sequence[Effect], classes: Sequence[str], positive: str) -> Iterator[Block]:
    """Blocks of the effects of columns; none without effects.

    Args:
        effects: of one model, the largest spread first.
        classes: names of the classes.
        positive: of two classes, whose log odds the effects are on; "" for the second.
    """
    if not effects:
        return
    what = "the logit of each class, beside the mean of all classes"
    if len(classes) == 2:
        what = f"the log odds of {positive or classes[1]!r}"
    yield Heading("Effect of each column")
    yield Paragraph(_FREE.format(what=what))
    which = f" The {MOST_PANELS} columns with the largest spread." if len(effects) > MOST_PANELS else ""
    drawn = drawn_for_page("What each column adds", f"To {what}.{which}", partial(curves, effects, classes))
    if drawn is not None:
        yield drawn
    yield _effect_table(effects, classes)
    of_class = ", of the class where it is largest" if len(classes) > 2 else ""
    yield Paragraph(_SPREAD.format(classes=of_class), small=True)
    hidden = [effect.column for effect in effects if not effect.public]
    if hidden:
        yield Paragraph(_HIDDEN.format(names=", ".join(hidden)), small=True)


def _effect_table(effects: Sequence[Effect], classes: Sequence[str]) -> Table:
    """Table of all columns: spread, and the parts that add least and most."""
    several = len(classes) > 2
    columns = [
        Column("column", "name"),
        Column("spread", show="{:.2f}".format),
        *([Column("class", "text")] if several else []),
        Column("adds least", "text"),
        Column("adds most", "text"),
        Column("missing", "text"),
    ]
    rows: list[list[Cell]] = []
    for effect in effects:
        output = int((effect.known**2).mean(axis=0).argmax())
        known = effect.known[:, output]
        ends = [f"{part_text(effect, int(at))} ({known[at]:+.2f})" for at in (known.argmin(), known.argmax())]
        missing = f"{effect.values[-1, output]:+.2f}" if effect.missing else ""
        rows.append([effect.column, effect.spread, *([classes[output]] if several else []), *ends, missing])
    return Table(columns, rows)


def part_text(effect: Effect, part: int) -> str:
    """Text of a part of a column: a range of numbers, or a text; its number where these are not public."""
    count = len(effect.known)
    if effect.edges is None:
        return effect.texts[part] if effect.public else f"text {part + 1} of {count}"
    if not effect.public:
        return f"interval {part + 1} of {count}"
    if not effect.edges:
        return "any number"
    if part == 0:
        return f"below {number_text(effect.edges[0])}"
    if part == len(effect.edges):
        return f"from {number_text(effect.edges[-1])}"
    ends = [number_text(edge) for edge in effect.edges[part - 1 : part + 1]]
    return " to ".join(ends) if ends[0] != ends[1] else f"about {ends[0]}"
