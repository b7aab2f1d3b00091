"""Pages from templates."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from equidp.display import markdown_text
from equidp.report.format import number, points


def filled(template: str, package: str = "equidp.report", **values: Any) -> str:
    """Fill in a template; values are escaped in HTML.

    Args:
        template: name of a file in the folder `templates` of the package, or of equidp.report, whose parts
            (base.css, print.css, parts.html) it may include.
        package: import path of the template's package.
        values: of the template's names.
    """
    html = template.endswith(".html")
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("equidp.report")]),
        autoescape=html,
        finalize=_unbroken_text if html else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"points": points, "number": number, "cell": markdown_text, "unbroken": _unbroken}
    return environment.get_template(template).render(values)


def _unbroken(value: object) -> object:
    """HTML in which no line ends within a number such as 1e-05; texts are escaped, other values stay."""
    if not isinstance(value, str):
        return value
    return Markup(re.sub(r"\b\d+(\.\d+)?e-\d+", r'<span class="whole">\g<0></span>', str(escape(value))))


def _unbroken_text(value: object) -> object:
    return value if isinstance(value, Markup) else _unbroken(value)
