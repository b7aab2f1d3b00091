"""The site builds from docs/ and from the code, without a warning."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import equidp
from equidp.cli.app import COMMANDS
from equidp.data.sources import SOURCES

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
from _site import docstrings, gallery, links, pages  # noqa: E402


@pytest.mark.soak
def test_each_command_method_dataset_and_public_name_has_its_place():
    assert all(f"## {name}\n" in pages.describe_commands() for name in COMMANDS)
    assert all(f"## {name}\n" in pages.describe_methods() for name in equidp.METHODS)
    page = (DOCS / "data.md").read_text()
    assert all(f"`{name}`" in page for name in SOURCES)
    assert all(f":: equidp.{name}\n" in pages.describe_names() for name in equidp.__all__)


@pytest.mark.soak
def test_options_of_a_page_are_those_of_the_command():
    text = pages.describe_commands()
    assert "--empty-" not in text
    assert "--no-" not in text
    assert "`--epsilon FLOAT`" in text


def test_tables_and_names_of_docstrings_become_what_sphinx_reads():
    lines = [
        "Weigh `norms`, |S| in all.",
        "",
        "| case | value |",
        "| --- | --- |",
        "| no `rows`, and a text that",
        "  goes on | 0 |",
        "",
        ">>> a = `b`",
    ]
    docstrings.to_rest(None, "function", "f", None, None, lines)
    assert lines[0] == r"Weigh ``norms``, \|S\| in all."
    assert "   :header-rows: 1" in lines
    assert "   * - no ``rows``, and a text that goes on" in lines
    assert "     - 0" in lines
    assert lines[-1] == ">>> a = `b`"


@pytest.mark.parametrize(
    ("name", "link", "rewritten"),
    [
        ("data", "[x](training.md#a)", "[x](training.md#a)"),
        ("data", "[x](https://a.org)", "[x](https://a.org)"),
        ("data", "[x](#a)", "[x](#a)"),
        ("data", "[x](../papers/results.md)", "[x](generated/papers-results.md)"),
        ("data", "[x](../src/equidp/models.py)", "x (`src/equidp/models.py`)"),
        ("generated/papers-README", "[x](results.md#a)", "[x](papers-results.md#a)"),
        ("generated/papers-results", "[x](../docs/data.md)", "[x](../data.md)"),
        ("generated/papers-results", "[x](results/a.json)", "x (`papers/results/a.json`)"),
        ("generated/papers-results", "![x](results/a.png)", "![x](../../papers/results/a.png)"),
        ("index", "[x](tutorials)", "[x](generated/tutorials/index.rst)"),
        ("data", "[x](tutorials/plot_a.py)", "[x](generated/tutorials/plot_a.rst)"),
        ("generated/methods", "[x](../data.md)", "[x](../data.md)"),
    ],
)
def test_links_lead_to_pages_of_the_site(name, link, rewritten):
    source = [link]
    links.rewrite(None, name, source)
    assert source == [rewritten]


@pytest.mark.soak
def test_the_site_builds_without_a_warning(tmp_path):
    """Tutorials are built without running them, which `test_tutorials.py` does."""
    pytest.importorskip("sphinx", reason="the site is built with the extra docs")
    unrun = ("-D", "sphinx_gallery_conf.plot_gallery=0")
    built = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", *unrun, "-b", "html", str(DOCS), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr[-3000:]
    assert (tmp_path / "generated" / "api.html").exists()
    assert all(
        (tmp_path / "generated" / "tutorials" / f"plot_{name}.html").exists() for name in gallery.ORDER
    )
