"""Generated pages: commands, methods, and public names of `import equidp`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path

import equidp
from equidp.cli.app import COMMANDS, app
from equidp.cli.methods import settings_table
from equidp.policies.methods import method_named
from equidp.policies.setting import settings_of
from equidp.policies.table import METHODS
from equidp.report.format import capitalise

TABLES = {
    "METHODS": "Table of methods: name -> :class:`equidp.Method`. Add methods of your own as to a dict.",
    "METRICS": "Table of metrics: name -> :class:`equidp.Metric`. Add metrics of your own as to a dict.",
}
"""Description of public names that are neither classes nor functions; one that lacks it fails the build."""
TOPICS = {
    "Runs on disk": "runs",
    "Training": "training engines",
    "Data": "data tables",
    "Methods": "policies kernel",
    "Accounting and ledgers": "accounting ledger",
    "Evaluation, cards and tables of results": "evaluation report display estimator",
    "Comparison": "comparison",
    "Individual privacy, diagnostics and audits": "individual diagnostics audit",
    "Errors": "errors",
}
"""Topic of the API's page -> packages of its names; a test finds a package that has none."""
_SECTIONS = ("Args", "Attributes", "Example", "Raises", "Returns")
PAPERS = Path(__file__).parents[2] / "papers"


def write_pages(folder: Path) -> None:
    """Write all generated pages below a folder, and leave those that are up to date alone."""
    wanted = {
        "commands.md": describe_commands(),
        "methods.md": describe_methods(),
        "api.rst": describe_names(),
        **{f"papers-{path.stem}.md": path.read_text() for path in sorted(PAPERS.glob("*.md"))},
    }
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_file() and path.name not in wanted:  # folders are of tutorials
            path.unlink()
    for name, text in wanted.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def describe_commands() -> str:
    """Return the page of the command line, from the options of each command."""
    parts = [
        "# Command line",
        "Each command has `--help`. Options that several commands share act alike in all of them. `--config` "
        "takes [run.toml](../tables.md), and `--set` any field of it.",
        *(_describe_command(name) for name in COMMANDS),
    ]
    return "\n\n".join(parts)


def _describe_command(name: str) -> str:
    """Return the section of one command, without --no-x and --empty-x, which the program turns off."""
    text = app[name].generate_docs(heading_level=2, usage_name=f"equidp {name}", max_heading_level=4)
    text = re.sub(r", --(?:empty|no)-[\w-]+(?=[`,])", "", text.replace("## Table of Contents", ""))
    return text.replace(" *[default: ()]*", "")


def describe_methods() -> str:
    """Return the page of the methods, from their docstrings and settings."""
    parts = [
        "# Methods, one by one",
        "`equidp methods NAME` prints the same settings; each is an option of `train` and `compare`.",
    ]
    for name in METHODS:
        method = method_named(name)
        policy = method.policy
        parts += [
            f"## {name}",
            f"{capitalise(method.summary).rstrip('.')}. In Python `equidp.{policy.__name__}`.",
        ]
        parts.append(_as_markdown(inspect.getdoc(policy) or ""))
        if settings := settings_of(policy):
            parts.append(settings_table(settings).to_markdown())
    return "\n\n".join(parts) + "\n"


def _as_markdown(docstring: str) -> str:
    """Docstring without its sections on attributes, errors and examples; blank lines stay."""
    kept: list[str] = []
    for line in docstring.splitlines():
        if line.rstrip(":") in _SECTIONS or line.startswith(">>>"):
            break
        kept.append(line)
    return "\n".join(kept).strip()


def describe_names() -> str:
    """Return the page of the public names by topic, in reStructuredText for autodoc."""
    parts = [
        "Python API",
        "==========",
        "",
        "Names of ``import equidp``, each with its arguments, errors and an example.",
        "",
    ]
    for topic, packages in TOPICS.items():
        parts += [topic, "-" * len(topic), ""]
        for name in equidp.__all__:
            if equidp._HOME[name].partition(".")[0] in packages.split():
                parts += _directive(name)
    return "\n".join(parts)


def _directive(name: str) -> Iterable[str]:
    value = getattr(equidp, name)
    title = [name, "~" * len(name), ""]
    if inspect.isclass(value):
        members = [] if issubclass(value, BaseException) else ["   :members:"]
        return [*title, f".. autoclass:: equidp.{name}", *members, ""]
    if callable(value):
        return [*title, f".. autofunction:: equidp.{name}", ""]
    return [*title, f".. py:data:: equidp.{name}", "", f"   {TABLES[name]}", ""]
