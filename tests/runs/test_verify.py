"""A finished run is verified from its files, and its epsilon by dp_accounting alone."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys

import pytest

from equidp._provenance import kernel_digest
from equidp.errors import DataError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import ChoiceEvent, GroupedStepEvent, GroupShare, ReleaseEvent, StepEvent
from equidp.ledger.format import plain
from equidp.runs import layout, recompute
from equidp.runs.recompute import recompute_epsilon
from equidp.runs.verify import CHECKS, read_notes, verify_run
from support.errors import raises_field

STEP = StepEvent(0.05, 1.5)
GROUPED = GroupedStepEvent(
    0.2,
    1.5,
    4.0,
    by_group=(GroupShare("a", 0.2, 0.5), GroupShare("b", 0.05), GroupShare("c", 0.1, 0.0, 0.0)),
)
OTHER = GroupedStepEvent(0.1, 2.0, by_group=(GroupShare("a", 0.1, 0.25), GroupShare("b", 0.02)))
RUNS = {
    "nothing": [],
    "steps": [(STEP, 40)],
    "steps of a method with statistics": [(StepEvent(0.05, 1.5, 6.0), 40)],
    "whole-number noise": [(StepEvent(0.05, 2), 40)],
    "all examples": [(StepEvent(1.0, 9.0), 1)],
    "releases before and after": [
        (ReleaseEvent(1.0, 12.0, name="preprocessing"), 1),
        (STEP, 40),
        (ReleaseEvent(1.0, 12.0, name="recalibration"), 1),
    ],
    "rates and bounds by group": [(GROUPED, 30), (ReleaseEvent(1.0, 12.0, name="counts"), 1)],
    "two kinds of steps by group": [(GROUPED, 30), (OTHER, 20)],
    "no noise": [(StepEvent(0.05, 0.0), 3)],
    "hardly any noise": [(StepEvent(0.5, 0.01), 5)],
}


@pytest.mark.parametrize(
    "entries",
    [
        pytest.param(entries, id=name, marks=[pytest.mark.soak] if name.startswith("two kinds") else [])
        for name, entries in RUNS.items()
    ],
)
def test_dp_accounting_alone_gives_the_epsilon_of_the_ledger(entries):
    """The ledger's has wider bins here, which add a thousandth at most."""
    found = recompute_epsilon([(plain(event), count) for event, count in entries], 1e-5)
    stated = epsilon(entries, 1e-5)
    assert found == stated or (1 - 2e-3) * stated <= found <= stated * (1 + 1e-9)


def test_a_private_choice_is_recomputed_by_renyi():
    entries = [(ChoiceEvent(((STEP, 40),), 5.0), 1)]
    found = recompute_epsilon([(plain(event), count) for event, count in entries], 1e-5)
    assert found == pytest.approx(epsilon(entries, 1e-5, "rdp"), rel=1e-6)


def results(folder) -> dict[str, bool | None]:
    return {check.name: check.passed for check in verify_run(folder)}


def failed(folder) -> set[str]:
    return {name for name, passed in results(folder).items() if passed is False}


@pytest.mark.soak
def test_a_whole_run_passes_every_check(finished):
    found = {check.name: check.found for check in verify_run(finished.folder)}
    assert list(found) == list(CHECKS)
    assert results(finished.folder) == {name: None if name == "target" else True for name in CHECKS}
    assert found["epsilon"]["recomputed"] <= found["epsilon"]["stated"] + 1e-9
    assert found["code"]["kernel"] == kernel_digest()
    assert kernel_digest() in (finished.folder / layout.CARD).read_text()


@pytest.mark.soak
def test_shareable_files_alone_are_verified_as_far_as_they_go(finished, tmp_path):
    for line in (finished.folder / layout.GIVEN).read_text().splitlines():
        shutil.copy(finished.folder / line.partition("  ")[2], tmp_path)
    shutil.copy(finished.folder / layout.GIVEN, tmp_path)
    found = results(tmp_path)
    assert found["ledger"] is None
    assert found["entries"] is None
    assert found["files"]
    assert found["epsilon"]
    (tmp_path / layout.PAGE).unlink()  # not everything is handed on
    assert results(tmp_path) == found


@pytest.mark.soak
@pytest.mark.parametrize("name", [layout.CONFIG, layout.MODEL, layout.RECORD, layout.PAGE, layout.CARD])
def test_a_changed_or_missing_file_is_found(finished, name):
    path = finished.folder / name
    path.write_bytes(path.read_bytes() + b" ")
    found = {check.name: check for check in verify_run(finished.folder)}
    assert found["files"].found["changed"] == [name]
    assert found["files"].passed is False
    assert found["card"].passed is (name != layout.MODEL)
    path.unlink()
    files = verify_run(finished.folder)[0]
    # Without its configuration, what is left is read as a copy of the shareable files.
    assert files.found["missing"] == ([] if name == layout.CONFIG else [name])


@pytest.mark.soak
def test_lists_of_checksums_are_files_that_may_be_missing(finished):
    (finished.folder / layout.MANIFEST).unlink()
    assert failed(finished.folder) == {"files"}


@pytest.mark.soak
def test_a_ledger_that_lacks_lines_fails(finished):
    path = finished.folder / layout.LEDGER
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "ledger" in failed(finished.folder)


def rewrite(folder, change) -> None:
    """Change the settings, with the checksums that belong to them."""
    path = folder / layout.SETTINGS
    settings = json.loads(path.read_text())
    before = layout.file_digest(path)
    change(settings)
    path.write_text(json.dumps(settings))
    for name in (layout.GIVEN, layout.MANIFEST):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace(before, layout.file_digest(path)))


@pytest.mark.soak
def test_settings_that_contradict_ledger_and_card_fail(finished):
    def more(settings):
        settings["entries"][0][1] *= 3

    rewrite(finished.folder, more)
    assert failed(finished.folder) == {"entries", "epsilon"}


@pytest.mark.soak
def test_an_epsilon_above_the_one_asked_for_and_a_large_delta_fail(finished):
    def other(settings):
        settings["config"]["target"]["epsilon"] = 0.01
        settings["facts"]["num_train"] = 10**9

    rewrite(finished.folder, other)
    assert failed(finished.folder) == {"target", "delta"}


@pytest.mark.soak
def test_another_kernel_is_named_and_is_no_failure(finished):
    rewrite(finished.folder, lambda settings: settings["facts"].update(kernel_sha256="0" * 64))
    assert results(finished.folder)["code"] is None


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"entries": [[{"spend": {}}, 1]]}', "\x00"])
def test_what_is_no_run_is_refused(finished, content, tmp_path):
    with raises_field(DataError, "folder"):
        verify_run(tmp_path / "nothing")
    with raises_field(DataError, "folder"):
        verify_run(tmp_path)
    (finished.folder / layout.SETTINGS).write_text(content)
    with raises_field(DataError, layout.SETTINGS):
        verify_run(finished.folder)


def test_notes_on_the_data_are_listed(finished):
    notes = json.loads((finished.folder / layout.CONFIG).read_text())["facts"]["notes"]
    assert list(read_notes(finished.folder)) == notes


@pytest.mark.soak
def test_the_script_runs_without_equidp(finished, tmp_path):
    """As an auditor would run a copy: Python is told not to look for packages where equidp is."""
    script = tmp_path / "recompute.py"
    shutil.copy(recompute.__file__, script)
    text = script.read_text()
    assert "import equidp" not in text
    assert "from equidp" not in text
    done = subprocess.run(
        [sys.executable, str(script), str(finished.folder), "1e-6"],
        capture_output=True,
        text=True,
        check=True,
        env={},
    )
    spent = epsilon(finished.run.entries, 1e-6)
    assert math.isclose(float(done.stdout.split()[1]), spent, rel_tol=1e-3)
    assert done.stdout.endswith("at delta 1e-06\n")
