"""`python -m papers reproduce` as a user calls it."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from equidp import SettingError
from papers.reproduction.compared import Compared
from papers.reproduction.item import XU, Claim, Item, Verdict
from papers.reproduction.reproduce import ITEMS, check_device
from papers.reproduction.result import Result
from support.command import papers_here
from support.errors import raises_field

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
        (("xu-table-9", "--list"), "needs one of"),
        (("xu-tabel-1",), "Did you mean 'xu-table-1'"),
        (("xu-table-9", "--seeds", "0"), "seeds=0"),
        (("xu-table-9", "--device", "cuda:77"), "device 'cuda:77'"),
        (("xu-table-9", "--seeds-of", "digit=1"), "Did you mean 'digits'?"),
        (("xu-table-9", "--seeds-of", "digits"), "expected name=number"),
        (("xu-table-9", "--seeds-of", "digits=1,digits=2"), "each name once"),
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


def test_only_comparisons_train_on_another_device():
    check_device(TOY, "cuda")
    with raises_field(SettingError, "device"):
        check_device(ITEMS["yu-figure-1"], "cuda")
    check_device(ITEMS["yu-figure-1"], "cpu")


def test_figures_whose_code_is_not_kept_name_their_commit(tmp_path):
    done = papers_here("reproduce", "xu-readings-census", "--seeds", "1", cwd=tmp_path)
    assert done.returncode == 2
    assert "check out the commit" in " ".join(done.stderr.split())
