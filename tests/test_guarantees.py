"""The pages of the guarantee name files that exist, and tiers import nothing beyond what their row says."""

from __future__ import annotations

import re
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "equidp"
STATEMENT = (ROOT / "docs" / "guarantees.md").read_text()
REVIEW = ["code-to-review"]
SENTENCES = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in REVIEW)
TRUSTED = ("kernel", "ledger")
"""Tiers of the guarantee that are whole folders."""
PAGES = ["guarantees", "not-covered", *REVIEW, "how-it-works", "nist"]


def tiers() -> dict[str, list[str]]:
    """Promise -> files and folders, by the table of the statement."""
    table = STATEMENT.partition("| what is promised | files |")[2].partition("\n\n")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    return {promise.strip(): re.findall(r"`([^`]+)`", files) for promise, files in rows}


def named(name: str) -> list[str]:
    """The files of a name in the table, relative to the package."""
    found = sorted((SOURCE / name).rglob("*.py")) if name.endswith("/") else [SOURCE / name]
    return [file.relative_to(SOURCE).as_posix() for file in found]


def file_of(module: str) -> str:
    """The file of a module, relative to the package."""
    path = SOURCE.joinpath(*module.split(".")[1:])
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.relative_to(SOURCE).as_posix()


def test_every_tier_names_files_that_exist():
    assert len(tiers()) >= 10
    for promise, files in tiers().items():
        assert files, promise
        for name in files:
            assert (SOURCE / name).exists(), f"{promise}: {name}"


@pytest.mark.parametrize("page", PAGES)
def test_every_source_file_that_a_page_names_exists(page):
    names = set(re.findall(r"`([a-z_/]+\.py)`", (ROOT / "docs" / f"{page}.md").read_text()))
    assert len(names) >= 2
    assert {
        name
        for name in names
        if not any((folder / name).exists() for folder in (SOURCE, SOURCE / "kernel", ROOT))
    } == set()


@pytest.mark.parametrize("folder", TRUSTED)
def test_the_pages_of_sentences_name_every_file_of_a_tier(folder):
    """An auditor reads the folder along this page: a file that it leaves out would not be read."""
    files = {path.name for path in (SOURCE / folder).glob("*.py")} - {"__init__.py"}
    assert {name for name in files if name not in SENTENCES} == set()


@pytest.mark.soak
@pytest.mark.parametrize("folder", TRUSTED)
def test_a_tier_imports_only_its_row_and_the_rows_above(folder):
    rows = list(tiers().values())
    place = next(index for index, files in enumerate(rows) if f"{folder}/" in files)
    allowed = {file for files in rows[: place + 1] for name in files for file in named(name)}
    graph = grimp.build_graph("equidp", cache_dir=None)
    for importer in {f"equidp.{folder}", *graph.find_descendants(f"equidp.{folder}")}:
        imported = {file_of(each) for each in graph.find_modules_directly_imported_by(importer)}
        assert imported <= allowed, importer


def test_each_answer_to_an_auditor_quotes_a_line_of_its_file():
    table = STATEMENT.partition("| question | answer | file | line |")[2].partition("\n\n")[0]
    rows = [line.strip("| ").rsplit(" | ", 2) for line in table.splitlines()[2:]]
    assert len(rows) == 10
    for question, file, line in rows:
        there = [each.strip() for each in (SOURCE / file.strip("` ")).read_text().splitlines()]
        assert line.strip("` ") in there, question
