"""What the documentation shows works as it stands."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path
from unittest.mock import patch

import joblib
import pytest

from equidp.cli import main
from equidp.ledger.ledger import Ledger
from equidp.policies.table import METHODS
from support.command import equidp_here

ROOT = Path(__file__).parents[1]
SOAK = (pytest.mark.soak,)
SLOW = ("compare(",)
SERVICES = ("tensorboard", "mlflow", "wandb", "lightning")
"""Packages that blocks may import and that an installation for tests need not have."""
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "papers").glob("*.md")),
]


def blocks_of(page: Path) -> list[str]:
    """Return a page's blocks of Python; one that imports nothing continues the block above it."""
    blocks: list[str] = []
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE):
        if re.match(r"(import|from) ", block):
            blocks.append(block)
        else:
            blocks[-1] += f"\n\n{block}"
    return blocks


BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{index}", marks=SOAK[: any(word in block for word in SLOW)])
    for page in PAGES
    for index, block in enumerate(blocks_of(page))
    if "Protocol" not in block and "(ABC)" not in block
]


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory):
    """Folder of the runs of comparisons: several pages show the same one."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # one for all workers
    (folder / "runs-of-the-docs").mkdir(exist_ok=True)
    return folder / "runs-of-the-docs"


@pytest.mark.soak
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.usefixtures("no_plots")
def test_python_blocks_run(block, kept_runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("equidp-runs").symlink_to(kept_runs)
    for package in SERVICES:
        if re.search(rf"^(from|import) .*{package}", block, re.MULTILINE):
            pytest.importorskip(package)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tmp_path.as_uri())
    if "my_methods" in block:
        write_my_methods(tmp_path, monkeypatch)
    if '"visits.csv"' in block and 'to_csv("visits.csv"' not in block:
        exec(compile(TABLE_OF_VISITS, "table", "exec", dont_inherit=True), {})
    # A block may add a method of its own (a copy of METHODS would lose rows); comparisons need no processes.
    with patch.dict(METHODS), joblib.parallel_config(n_jobs=1):
        exec(compile(block, "block", "exec", dont_inherit=True), {"__name__": "block"})


TABLE_OF_VISITS = next(block for each in BLOCKS if 'to_csv("visits.csv"' in (block := each.values[0]))

OWN_METHOD = (ROOT / "docs" / "own-method.md").read_text()


def first_block(language: str) -> str:
    """Of the page on methods of one's own: its file, or its commands."""
    return re.search(rf"^```{language}\n(.*?)^```", OWN_METHOD, re.DOTALL | re.MULTILINE)[1]


def write_my_methods(folder, monkeypatch) -> None:
    """The file that the page begins with, importable."""
    (folder / "my_methods.py").write_text(first_block("python"))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)


@pytest.mark.soak
def test_a_method_of_ones_own_goes_from_a_file_to_a_report(tmp_path, monkeypatch):
    """Each command of the page, with one epoch and two seeds."""
    write_my_methods(tmp_path, monkeypatch)
    little = {"compare": ["--epochs", "1", "--seeds", "2", "--jobs", "1"], "train": ["--epochs", "1"]}
    for command in first_block("console").splitlines():
        _, name, *rest = command.split()
        done = equidp_here(name, *rest, *little.get(name, []), cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    assert "my_methods:LowerForFirst" in (tmp_path / "report.html").read_text()
    assert "my_methods:LowerForFirst (first_share=0.25)" in (tmp_path / "sweep.html").read_text()
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) > 300


def anchors_of(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and MyST make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#{1,4} (.+)$", text, re.MULTILINE)
    shown = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).strip().lower() for each in headings)
    return {re.sub(r"[^\w\- ]", "", each).replace(" ", "-") for each in shown}


def texts_of(folder: Path) -> str:
    """Return all strings of the code, each on a line; gaps stand for what an f-string fills in."""
    nodes = (node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    return "\n".join(
        node.value for node in nodes if isinstance(node, ast.Constant) and type(node.value) is str
    )


def test_the_page_of_errors_quotes_messages_of_the_code():
    tables = (ROOT / "docs" / "faq.md").read_text().partition("## Questions")[0]
    rows = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    texts = texts_of(ROOT / "src" / "equidp").lower()
    assert len(rows) >= 25
    assert [part for row in rows for part in re.findall("`([^`]+)`", row) if part.lower() not in texts] == []


@pytest.mark.parametrize(
    "page",
    [*PAGES, *(page for page in sorted(ROOT.glob("*.md")) if page not in PAGES)],
    ids=lambda page: page.stem,
)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), target
        assert not anchor or found.suffix != ".md" or anchor in anchors_of(found), target


@pytest.mark.soak
def test_the_tour_goes_from_a_csv_to_a_card_in_one_command(real_data, tmp_path, monkeypatch):
    """The first command of the README, on Adult, takes few enough steps to train within a minute."""
    command = re.search(r"^equidp train adult .*$", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", command.split())
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "differentially private" in (tmp_path / "run" / "share" / "card.html").read_text()
    ((_, steps),) = Ledger.read(tmp_path / "run" / "private" / "ledger").entries()
    assert steps < 3000
