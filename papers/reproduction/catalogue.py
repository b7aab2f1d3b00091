"""The table of items."""

from __future__ import annotations

from papers.reproduction import beyond, esipova, reading_study, xu, yu
from papers.reproduction.item import Item


def _place(item: Item) -> tuple[str, int, str]:
    kind, _, number = item.name.removeprefix(f"{item.paper.key}-").partition("-")
    digits = "".join(letter for letter in number if letter.isdigit())
    return kind if digits else "", int(digits or 0), number


ITEMS: dict[str, Item] = {
    item.name: item
    for of_paper in (
        xu.ITEMS,
        reading_study.ITEMS,
        esipova.ITEMS,
        yu.ITEMS,
        beyond.ITEMS,
    )
    for item in sorted(of_paper, key=_place)
}
"""Name -> item, by paper: figures before tables."""
