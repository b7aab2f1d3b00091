"""Effects of columns on a model's outputs, as blocks of a card: a plot and a table."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial

from equidp.display import Cell, Column, Table
from equidp.evaluation.effects import Effect
from equidp.report.document import Block, Heading, Paragraph
from equidp.report.plots.effects import MOST_PANELS, curves, edge_texts
from equidp.report.plots.style import drawn_for_page

_MEANING = (
    "Each interval or text of a column adds a number to {what}. These numbers follow from the released "
    "weights, so they cost no privacy. They are effects given all other columns, not causes, and noise of "
    "training is in them."
)
_HIDDEN = (
    "The edges or texts of {names} come from training rows, so they are not shown: intervals are numbered "
    "from lowest to highest. Public ranges or private preprocessing would show them."
)


def effect_blocks(
    effects: Sequence[Effect], classes: Sequence[str], positive: str, dates: Collection[str] = ()
) -> Iterator[Block]:
    """Blocks of the effects of columns; none without effects.

    Args:
        effects: of one model, the largest spread first.
        classes: names of the classes.
        positive: of two classes, whose log odds the effects are on; "" for the second.
        dates: names of the columns that hold days since 1 January 2000.
    """
    if not effects:
        return
    what = "the logit of each class, beside the mean of all classes"
    if len(classes) == 2:
        what = f"the log odds of {positive or classes[1]!r}"
    yield Heading("Effect of each column")
    yield Paragraph(_MEANING.format(what=what))
    which = f" The {MOST_PANELS} columns with the largest effects." if len(effects) > MOST_PANELS else ""
    draw = partial(curves, effects, classes, dates)
    drawn = drawn_for_page("What each column adds", f"To {what}.{which}", draw)
    if drawn is not None:
        yield drawn
    yield _effect_table(effects, classes, dates)
    hidden = [effect.column for effect in effects if not effect.public]
    if hidden:
        yield Paragraph(_HIDDEN.format(names=", ".join(hidden)), small=True)


def _effect_table(effects: Sequence[Effect], classes: Sequence[str], dates: Collection[str]) -> Table:
    """Table of all columns: size of the effect, and the parts that add least and most."""
    several, flagged = len(classes) > 2, any(effect.missing for effect in effects)
    columns = [
        Column("column", "name"),
        Column("root mean square", show="{:.2f}".format),
        *([Column("class", "text")] if several else []),
        Column("adds least", "text"),
        Column("adds most", "text"),
        *([Column("missing", "text")] if flagged else []),
    ]
    rows: list[list[Cell]] = []
    for effect in effects:
        output = int((effect.known**2).mean(axis=0).argmax())
        known = effect.known[:, output]
        is_date = effect.column in dates
        row: list[Cell] = [effect.column, effect.spread, *([classes[output]] if several else [])]
        for at in (known.argmin(), known.argmax()):
            row.append(f"{part_text(effect, int(at), is_date=is_date)} ({known[at]:+.2f})")
        if flagged:
            row.append(f"{effect.values[-1, output]:+.2f}" if effect.missing else "")
        rows.append(row)
    return Table(columns, rows)


def part_text(effect: Effect, part: int, *, is_date: bool = False) -> str:
    """Text of a part of a column: a range of numbers, or a text; its number where these are not public."""
    count = len(effect.known)
    if effect.edges is None:
        return effect.texts[part] if effect.public else f"text {part + 1} of {count}"
    if not effect.public:
        return f"interval {part + 1} of {count}"
    if not effect.edges:
        return "any number"
    texts = edge_texts(effect.edges, is_date=is_date)
    if part == 0:
        return f"below {texts[0]}"
    if part == len(texts):
        return f"from {texts[-1]}"
    low, high = texts[part - 1 : part + 1]
    return f"{low} to {high}" if low != high else f"about {low}"
