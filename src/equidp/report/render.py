"""Pages from templates."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from equidp.report.format import number, points


def filled(template: str, **values: Any) -> str:
    """A template of this package, filled in; values are escaped in HTML."""
    html = template.endswith(".html")
    environment = Environment(
        loader=PackageLoader("equidp.report"),
        autoescape=html,
        finalize=_unbroken if html else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"points": points, "number": number, "cell": _cell}
    return environment.get_template(template).render(values)


def _unbroken(value: object) -> object:
    """Text for HTML in which no line ends within a number such as 1e-05."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return Markup(re.sub(r"\b\d+(\.\d+)?e-\d+", r'<span class="whole">\g<0></span>', str(escape(value))))


def _cell(text: object) -> str:
    """Text that cannot break out of a Markdown table."""
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
