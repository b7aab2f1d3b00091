"""A finished run is verified from its files, and its epsilon by dp_accounting alone."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, replace

import pytest

from equidp._provenance import kernel_digest
from equidp.errors import DataError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event, Share
from equidp.runs import recompute
from equidp.runs.folder import CARD, CONFIG, ENCODER, LEDGER, MODEL, PAGE, RUN, SUMS, file_digest, write_sums
from equidp.runs.recompute import recompute_epsilon
from equidp.runs.verify import CHECKS, verify
from support.errors import raises_field

STEP = Event(0.05, 1.5)
GROUPED = Event(
    0.2,
    1.5,
    4.0,
    shares=(Share("a", 0.2, 0.5), Share("b", 0.05), Share("c", 0.1, 0.0, 0.0)),
    column="1",
)
OTHER = Event(0.1, 2.0, shares=(Share("a", 0.1, 0.25), Share("b", 0.02)), column="2")
RUNS = {
    "nothing": [],
    "steps of a method with statistics": [(Event(0.05, 1.5, 6.0), 40)],
    "releases before and after": [
        (Event(1.0, 12.0, name="preprocessing"), 1),
        (STEP, 40),
        (Event(1.0, 12.0, name="individual privacy"), 1),
    ],
    "rates and bounds by group": [(GROUPED, 30), (Event(1.0, 12.0, name="counts"), 1)],
    "steps by two columns": [(GROUPED, 30), (OTHER, 20)],
    "two kinds of steps by one column": [(GROUPED, 30), (replace(OTHER, column="1"), 20)],
    "no noise": [(Event(0.05, 0.0), 3)],
    "hardly any noise": [(Event(0.5, 0.01), 5)],
}


@pytest.mark.soak
@pytest.mark.parametrize("entries", RUNS.values(), ids=RUNS)
def test_dp_accounting_alone_gives_the_epsilon_of_the_ledger(entries):
    """The ledger's has wider bins here, which add a thousandth at most."""
    found = recompute_epsilon([(asdict(event), count) for event, count in entries], 1e-5)
    stated = epsilon(entries, 1e-5)
    assert found == stated or (1 - 2e-3) * stated <= found <= stated * (1 + 1e-9)


@pytest.mark.parametrize(("steps", "delta"), [(3000, 1e-12), (300_000, 1e-8)])
def test_where_transforms_lose_digits_renyi_alone_is_recomputed(steps, delta):
    """Privacy losses would say less than Renyi's bound there, and less than epsilon may be."""
    found = recompute_epsilon([(asdict(Event(0.01, 1.0)), steps)], delta)
    assert found == pytest.approx(epsilon([(Event(0.01, 1.0), steps)], delta, "rdp"), rel=1e-9)


def results(folder) -> dict[str, bool | None]:
    return {check.name: check.passed for check in verify(folder).checks}


def failed(folder) -> set[str]:
    return {name for name, passed in results(folder).items() if passed is False}


@pytest.mark.soak
def test_a_whole_run_passes_every_check(finished):
    verified = verify(finished.folder)
    found = {check.name: check.found for check in verified.checks}
    assert list(found) == list(CHECKS)
    assert list(verified.notes) == json.loads((finished.private / CONFIG).read_text())["facts"]["notes"]
    assert results(finished.folder) == {name: None if name == "target" else True for name in CHECKS}
    assert found["epsilon"]["recomputed"] <= found["epsilon"]["epsilon"] + 1e-9
    assert found["code"]["kernel"] == kernel_digest()
    assert kernel_digest() in (finished.share / CARD).read_text()


@pytest.mark.soak
def test_share_alone_is_verified_but_for_the_ledger(finished, tmp_path):
    part = shutil.copytree(finished.share, tmp_path / "part")
    found = results(part)
    assert {name for name, passed in found.items() if passed is None} == {"ledger", "entries", "target"}
    assert {name for name, passed in found.items() if passed} == {"files", "card", "epsilon", "delta", "code"}
    shutil.copy(finished.private / ENCODER, part)  # predictions need it; it has no checksum there
    assert results(part) == found
    (part / "further.txt").touch()
    assert verify(part).checks[0].found["unlisted"] == ["further.txt"]
    (part / "further.txt").unlink()
    (part / PAGE).unlink()
    assert verify(part).checks[0].found["missing"] == [PAGE]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["private/record.parquet", f"share/{MODEL}"])
def test_a_changed_or_missing_file_is_found(finished, name):
    path = finished.folder / name
    path.write_bytes(path.read_bytes() + b" ")
    found = {check.name: check for check in verify(finished.folder).checks}
    assert found["files"].found["changed"] == [path.name]
    assert found["files"].passed is False
    assert found["card"].passed is (path.name != MODEL)
    path.unlink()
    assert verify(finished.folder).checks[0].found["missing"] == [path.name]


@pytest.mark.soak
def test_a_ledger_beside_share_is_read(finished):
    """An auditor gets `share/` and `private/ledger`."""
    for path in finished.private.iterdir():
        if path.name != LEDGER:
            path.unlink()
    assert results(finished.folder)["ledger"]
    path = finished.private / LEDGER
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert "ledger" in failed(finished.folder)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["../secret"])
def test_files_outside_of_the_folder_are_not_read(finished, name):
    secret = finished.folder / "secret"
    secret.write_text("secret")
    sums = finished.share / SUMS
    sums.write_text(f"{sums.read_text()}{file_digest(secret)}  {name}\n")
    files = verify(finished.folder).checks[0]
    assert files.passed is False
    assert files.found["changed"] == [name]


@pytest.mark.soak
@pytest.mark.parametrize("part", ["share", "private"])
def test_a_list_of_checksums_that_is_missing_fails(finished, part):
    (finished.folder / part / SUMS).unlink()
    assert failed(finished.folder) == {"files"}


def rewrite(folder, change) -> None:
    """Change `run.json`, with the checksum that belongs to it."""
    path = folder / "share" / RUN
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    write_sums(folder / "share")


def three_times_the_steps(settings):
    settings["entries"][0][1] *= 3


def lower_target_and_more_examples(settings):
    settings["target_epsilon"] = 0.01
    settings["facts"]["num_train"] = 10**9


@pytest.mark.soak
@pytest.mark.parametrize(
    ("change", "checks"),
    [
        (three_times_the_steps, {"entries", "epsilon"}),
        (lambda settings: settings.update(delta=0.005), {"epsilon"}),
        (lower_target_and_more_examples, {"target", "delta"}),
        (lambda settings: settings["facts"].update(kernel_sha256="0" * 64), set()),
    ],
)
def test_settings_that_contradict_ledger_card_and_promise_fail(finished, change, checks):
    rewrite(finished.folder, change)
    assert failed(finished.folder) == checks
    assert results(finished.folder)["code"] is (True if checks else None)


@pytest.mark.soak
def test_entries_that_ledger_and_epsilon_would_read_differently_are_refused(finished):
    def twice(settings):
        (event, count), *_ = settings["entries"]
        settings["entries"] = [[event, 1 - count], [event, count]]

    def more_than_an_event(settings):
        settings["entries"][0][0]["nothing"] = 1e6

    kept = (finished.share / RUN).read_text()
    for change in (twice, more_than_an_event):
        (finished.share / RUN).write_text(kept)
        rewrite(finished.folder, change)
        with raises_field(DataError, RUN):
            verify(finished.folder)


@pytest.mark.soak
@pytest.mark.parametrize("name", [CARD, PAGE])
def test_a_card_that_states_two_epsilons_fails(finished, name):
    path = finished.share / name
    stated = "Training was (0.1, 0.0001)-differentially private for each training example."
    path.write_text(f"{stated}\n{path.read_text()}")
    assert {"files", "epsilon"} <= failed(finished.folder)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"entries": [[{"rate": 0.1}, 1]]}', "\x00"])
def test_what_is_no_run_is_refused(finished, content, tmp_path):
    with raises_field(DataError, "folder"):
        verify(tmp_path / "nothing")
    with raises_field(DataError, "folder"):
        verify(tmp_path)
    (finished.share / RUN).write_text(content)
    with raises_field(DataError, RUN):
        verify(finished.folder)


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


def test_a_number_of_times_below_0_is_not_recomputed():
    with pytest.raises(ValueError, match="expected 0 or more"):
        recompute_epsilon([(asdict(STEP), -3)], 1e-5)


@pytest.mark.soak
@pytest.mark.parametrize("name", [f"share/{RUN}", f"share/{CARD}", f"private/{LEDGER}"])
def test_what_is_no_file_of_the_folder_is_refused(finished, name):
    path = finished.folder / name
    moved = path.rename(finished.folder.parent / "moved")
    path.symlink_to(moved)
    with raises_field(DataError, path.name):
        verify(finished.folder)
    path.unlink()
    os.mkfifo(path)
    with raises_field(DataError, path.name):
        verify(finished.folder)
