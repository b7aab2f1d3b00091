"""Pages from templates."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from equidp.report.format import number, points


def filled(template: str, package: str = "equidp.report", **values: Any) -> str:
    """Fill in a template; values are escaped in HTML.

    Args:
        template: name of a file in the folder `templates` of the package, or of equidp.report, whose parts
            (base.css, print.css, picture.html) it may include.
        package: import path of the template's package.
        values: of the template's names.
    """
    html = template.endswith(".html")
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("equidp.report")]),
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
