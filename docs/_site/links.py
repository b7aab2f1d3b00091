"""Links of the pages lead to files of the repository; on the site, to pages, or to nothing but their text."""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_RESULT = re.compile(r"(!\[[^\]]*\])\((?=results/)")
_PAPERS = "generated/papers-"
_TUTORIALS = "generated/tutorials/"


def rewrite(app: Any, name: str, source: list[str]) -> None:
    """Rewrite the links of one page, in place.

    Args:
        app: unused; Sphinx passes it.
        name: of the page below docs/, without its ending.
        source: its text, as the one element.
    """
    folder = "papers" if name.startswith(_PAPERS) else posixpath.join("docs", posixpath.dirname(name))
    here = posixpath.dirname(name)
    text = _RESULT.sub(r"\1(../../papers/", source[0]) if folder == "papers" else source[0]
    source[0] = _LINK.sub(lambda found: _link(found[1], found[2], folder, here), text)


def _link(text: str, target: str, folder: str, here: str) -> str:
    """Return a link on the site; the name of a file in code where the site does not have it.

    Args:
        text: of the link.
        target: of the link.
        folder: of the repository that the target is relative to.
        here: folder below docs/ that the page is in on the site.
    """
    if re.match(r"[a-z]+:|#", target):
        return f"[{text}]({target})"
    path, mark, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(folder, path))
    place, name = posixpath.split(path)
    if path == "docs/tutorials":
        page = f"{_TUTORIALS}index.rst"
    elif name.endswith(".py") and place == "docs/tutorials":
        page = f"{_TUTORIALS}{name.removesuffix('.py')}.rst"
    elif name.endswith(".md") and place == "papers":
        page = f"{_PAPERS}{name}"
    elif name.endswith(".md") and place in ("docs", "docs/generated"):
        page = path.removeprefix("docs/")
    else:
        return f"{text} (`{path}`)"
    return f"[{text}]({posixpath.relpath(page, here or '.')}{mark}{anchor})"
