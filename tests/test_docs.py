"""What the documentation shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest

from equidp.cli import main
from equidp.kernel.ledger_format import read_ledger
from equidp.policies.methods import METHODS

ROOT = Path(__file__).parents[1]
SOAK = (pytest.mark.soak,)
SLOW = ("compare(", "membership_inference(")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{index}", marks=SOAK[: any(word in block for word in SLOW)])
    for page in PAGES
    for index, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    )
    if "Protocol" not in block and "(ABC)" not in block
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with patch.dict(METHODS):  # a block may add a method of its own
        exec(compile(block, "block", "exec", dont_inherit=True), {"__name__": "block"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


def test_the_readme_lists_every_method():
    table = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in table for name in METHODS)


def test_the_tour_goes_from_a_csv_to_a_card_in_one_command(real_data, tmp_path, monkeypatch):
    """The first command of the README, on Adult, takes few enough steps to train within a minute."""
    command = re.search(r"^equidp train adult .*$", (ROOT / "README.md").read_text(), re.MULTILINE)[0]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", command.split())
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    assert "differentially private" in (tmp_path / "run" / "card.html").read_text()
    ((_, steps),) = read_ledger(tmp_path / "run" / "ledger").entries
    assert steps < 3000


def test_the_guarantees_name_files_that_exist():
    page = (ROOT / "docs" / "guarantees.md").read_text()
    package = ROOT / "src" / "equidp"
    named = set(re.findall(r"`([a-z_/]+\.py)`", page))
    assert len(named) > 10
    assert [
        name for name in named if not ((package / name).exists() or (package / "kernel" / name).exists())
    ] == []


def test_the_guarantees_name_every_file_of_the_kernel():
    """An auditor reads the folder along this page: a file that it leaves out would not be read."""
    page = (ROOT / "docs" / "guarantees.md").read_text()
    files = {path.name for path in (ROOT / "src" / "equidp" / "kernel").glob("*.py")} - {"__init__.py"}
    assert {name for name in files if name not in page} == set()
