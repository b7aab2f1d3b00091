"""Documents: headings, sentences, tables and figures in order, written as an HTML page or as Markdown.

Content is built once. Both formats say the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from string import Template
from typing import NamedTuple, assert_never, final

from markupsafe import Markup, escape

from equidp.display import Table, markdown_text

_MOST_COLUMNS = 3
"""Columns of a table that fit on a phone."""


@final
@dataclass(frozen=True)
class Heading:
    """Heading of a section (level 2) or of a part of it (level 3)."""

    text: str
    level: int = 2


@final
@dataclass(frozen=True)
class Paragraph:
    """Paragraph of text.

    Attributes:
        text: one or several sentences.
        small: True for remarks on a table or figure, which HTML shows smaller and paler.
    """

    text: str
    small: bool = False


@final
@dataclass(frozen=True)
class Listing:
    """List of sentences with bullets."""

    items: Sequence[str]


@final
@dataclass(frozen=True)
class Code:
    """Code, or a command.

    Attributes:
        text: text of one or several lines.
        language: name of it in Markdown.
    """

    text: str
    language: str = "python"


@final
@dataclass(frozen=True)
class Facts:
    """Table of names and values, which HTML shows without headings of its columns."""

    table: Table


@final
@dataclass(frozen=True)
class Tile:
    """A large figure.

    Attributes:
        figure: such as "3".
        label: what it is.
        note: in small print, or "" for none.
    """

    figure: str
    label: str
    note: str = ""


@final
@dataclass(frozen=True)
class Tiles:
    """Large figures side by side."""

    tiles: Sequence[Tile]


class Drawn(NamedTuple):
    """Plot as an SVG element, with its title and caption; Markdown leaves it out."""

    title: str
    caption: str
    svg: str


@final
@dataclass(frozen=True)
class Callout:
    """Blocks that HTML sets apart from the text around them, in the colour of warnings on request."""

    blocks: Sequence[Block]
    warning: bool = False


Block = Heading | Paragraph | Listing | Code | Table | Facts | Drawn | Tiles | Callout
"""Block of a document."""


@final
@dataclass(frozen=True)
class Document:
    """Title and blocks of a report.

    Attributes:
        title: title of the page, and its first heading.
        blocks: below it, in order.

    Example:
        >>> document = Document("Card", [Heading("Limits"), Listing(["One run.", "n < 10 | m"])])
        >>> print(document.to_markdown())
        # Card
        <BLANKLINE>
        ## Limits
        <BLANKLINE>
        - One run.
        - n &lt; 10 \\| m
        <BLANKLINE>
        >>> "<li>n &lt; 10 | m</li>" in document.to_html()
        True
    """

    title: str
    blocks: Sequence[Block]

    def to_html(self) -> str:
        """Return the document as one HTML page that needs no other files. All texts are escaped."""
        page = (
            resources.files("equidp.report").joinpath("templates/document.html").read_text(encoding="utf-8")
        )
        return Template(page).substitute(title=escape(self.title), body=_joined_html(self.blocks))

    def to_markdown(self) -> str:
        """Return the document as Markdown, in which marks of HTML and tables are text."""
        return f"# {markdown_text(self.title)}\n\n{_joined_markdown(self.blocks)}\n"


def paragraphs(texts: Iterable[str], *, small: bool = False) -> list[Paragraph]:
    """Return a paragraph for each text."""
    return [Paragraph(text, small) for text in texts]


def _unbroken(text: str) -> Markup:
    """HTML in which no line ends within a number such as 1e-05; a text is escaped, Markup stays."""
    return Markup(re.sub(r"\b\d+(\.\d+)?e-\d+", r'<span class="whole">\g<0></span>', str(escape(text))))


def _table_html(table: Table, heads: bool = True) -> Markup:
    """Element of a table, whose rows become cards on a narrow screen; `heads`: as `Table.to_html` has it."""
    kind = " facts" if not heads else " many" if len(table.columns) > _MOST_COLUMNS else ""
    return Markup('<div class="scroll{}">{}</div>').format(kind, _unbroken(table.to_html(heads=heads)))


def _joined_html(blocks: Sequence[Block]) -> Markup:
    return Markup("\n").join(map(_block_html, blocks))


def _block_html(block: Block) -> Markup:
    match block:
        case Heading():
            return Markup("<h{0}>{1}</h{0}>").format(block.level, _unbroken(block.text))
        case Paragraph():
            return Markup("<p{}>{}</p>").format(
                Markup(' class="soft"' if block.small else ""), _unbroken(block.text)
            )
        case Listing():
            items = Markup("\n").join(Markup("<li>{}</li>").format(_unbroken(item)) for item in block.items)
            return Markup("<ul>\n{}\n</ul>").format(items)
        case Code():
            return Markup("<pre>{}</pre>").format(block.text)
        case Table():
            return _table_html(block)
        case Facts():
            return _table_html(block.table, heads=False)
        case Drawn():
            caption: list[Block] = [Heading(block.title, 3), Paragraph(block.caption, small=True)]
            return Markup(
                '<figure><figcaption>{}</figcaption><div role="img" aria-label="{}">{}</div></figure>'
            ).format(_joined_html(caption), block.title, Markup(block.svg))
        case Tiles():
            tiles = Markup("\n").join(
                Markup("<li><b>{}</b> {} <small>{}</small></li>").format(
                    *map(_unbroken, (each.figure, each.label, each.note))
                )
                for each in block.tiles
            )
            return Markup('<ul class="tiles">\n{}\n</ul>').format(tiles)
        case Callout():
            return Markup('<section class="callout{}">\n{}\n</section>').format(
                " warning" if block.warning else "", _joined_html(block.blocks)
            )
        case _:
            assert_never(block)


def _joined_markdown(blocks: Sequence[Block]) -> str:
    return "\n\n".join(filter(None, map(_block_markdown, blocks)))


def _block_markdown(block: Block) -> str:
    match block:
        case Heading():
            return f"{'#' * block.level} {markdown_text(block.text)}"
        case Paragraph():
            return markdown_text(block.text)
        case Listing():
            return "\n".join(f"- {markdown_text(item)}" for item in block.items)
        case Code():
            return f"```{block.language}\n{block.text}\n```"
        case Table():
            return block.to_markdown().rstrip("\n")
        case Facts():
            return _block_markdown(block.table)
        case Drawn():
            return ""
        case Tiles():
            lines = (" ".join(filter(None, (each.figure, each.label, each.note))) for each in block.tiles)
            return "\n".join(f"- {markdown_text(line)}" for line in lines)
        case Callout():
            return _joined_markdown(block.blocks)
        case _:
            assert_never(block)
