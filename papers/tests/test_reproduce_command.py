"""`python -m papers reproduce` as a user calls it."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from papers.reproduction.compared import Compared
from papers.reproduction.item import XU, Claim, Item, Verdict
from papers.reproduction.reproduce import ITEMS
from papers.reproduction.result import Result
from support.command import papers_here

TOY = Item(
    "xu-table-9",
    XU,
    "A toy",
    (Compared("digits", ("dpsgd",), 1e-9, changes={"epochs": 1, "batch_size": 256}),),
    seeds=2,
    claims=(Claim("it trains", lambda found: Verdict.of(True, {"rows": len(found.table)})),),
)


@pytest.fixture(autouse=True)
def toy():
    with patch.dict(ITEMS, {TOY.name: TOY}):
        yield


@pytest.mark.soak
def test_the_full_form_has_all_its_seeds_however_long_it_takes(tmp_path):
    """Its hours are an estimate, which ends nothing."""
    done = papers_here("reproduce", TOY.name, "--jobs", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "xu-table-9, 2 seeds: " in done.stderr
    assert "xu-table-9: reproduced." in done.stdout
    folder = tmp_path / "equidp-results"
    assert Result.load(folder / "xu-table-9.json").seeds_in_words == "2 seeds"
    assert (folder / "xu-table-9" / "index.md").exists()
    listed = papers_here("reproduce", "--list", cwd=tmp_path).stdout
    assert [line.split()[-3:-1] for line in listed.splitlines() if "xu-table-9" in line] == [
        ["reproduced", "2"]
    ]
    page = tmp_path / "page.md"
    assert papers_here("reproduce", "--page", str(page), cwd=tmp_path).returncode == 0
    assert "### xu-table-9" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "needs one of: the name of an item, --list, --page FILE"),
        (("xu-tabel-1",), "Did you mean 'xu-table-1'"),
        (("xu-table-9", "--seeds", "0"), "seeds=0"),
        (("xu-table-9", "--seeds-of", "digit=1"), "Did you mean 'digits'?"),
        (("--page", "there/is/no/folder.md"), "folder.md"),
        (("xu-table-9", "--results", "file"), "'file' cannot be a folder"),
    ],
)
def test_bad_input_gets_one_message_and_a_code(tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    done = papers_here("reproduce", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
