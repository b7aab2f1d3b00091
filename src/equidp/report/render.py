"""Pages from templates, and the elements of pages that hold a table or a figure."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from equidp.display import Table

_MOST_COLUMNS = 3
"""Columns of a table that fit on a phone."""


class Drawn(NamedTuple):
    """Plot as an SVG element, with its title and caption."""

    title: str
    caption: str
    svg: str


def filled(template: str, package: str = "equidp.report", **values: Any) -> str:
    """Fill in an HTML template, which may call `table_element` and `figure_element`; texts are escaped.

    Args:
        template: name of a file in the folder `templates` of the package, or of equidp.report, whose parts
            (base.css, print.css) it may include.
        package: import path of the template's package.
        values: of the template's names.
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("equidp.report")]),
        autoescape=True,
        finalize=unbroken,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"table_element": table_element, "figure_element": figure_element}
    return environment.get_template(template).render(values)


def unbroken(value: object) -> object:
    """HTML in which no line ends within a number such as 1e-05; texts are escaped, other values stay."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return Markup(_whole_numbers(str(escape(value))))


def _whole_numbers(html: str) -> str:
    return re.sub(r"\b\d+(\.\d+)?e-\d+", r'<span class="whole">\g<0></span>', html)


def table_element(table: Table, heads: bool = True) -> Markup:
    """Element of a table, whose rows become cards on a narrow screen; `heads`: as `Table.to_html` has it."""
    many = " facts" if not heads else " many" if len(table.columns) > _MOST_COLUMNS else ""
    html = Markup(_whole_numbers(str(table.to_html(heads=heads))))
    return Markup('<div class="scroll{}">{}</div>').format(many, html)


def figure_element(plot: Drawn) -> Markup:
    """Element of a figure."""
    return Markup('<div role="img" aria-label="{}">{}</div>').format(plot.title, Markup(plot.svg))
