"""Pages from templates."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from equidp.report.format import number, points


def filled(template: str, **values: Any) -> str:
    """A template of this package, filled in; values are escaped in HTML."""
    environment = Environment(
        loader=PackageLoader("equidp.report"),
        autoescape=template.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"points": points, "number": number, "cell": _cell}
    return environment.get_template(template).render(values)


def _cell(text: object) -> str:
    """Text that cannot break out of a Markdown table."""
    return str(text).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
