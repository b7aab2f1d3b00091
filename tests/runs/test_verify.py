"""A finished run is verified from its files, and its epsilon by dp_accounting alone."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys

import pytest

from equidp._provenance import kernel_digest
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.display import shown_epsilon
from equidp.errors import DataError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import GroupedStepEvent, GroupShare, ReleaseEvent, StepEvent
from equidp.ledger.format import event_of, plain
from equidp.runs import layout, recompute
from equidp.runs.begin import begin
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.prepare import prepare
from equidp.runs.recompute import recompute_epsilon
from equidp.runs.releases import CountsRelease
from equidp.runs.train import train
from equidp.runs.verify import CHECKS, verify_run
from equidp.training.plan import Plan
from support.errors import raises_field
from support.toy import save_patients

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
        (ReleaseEvent(1.0, 12.0, name="individual privacy"), 1),
    ],
    "rates and bounds by group": [(GROUPED, 30), (ReleaseEvent(1.0, 12.0, name="counts"), 1)],
    "two kinds of steps by group": [(GROUPED, 30), (OTHER, 20)],
    "no noise": [(StepEvent(0.05, 0.0), 3)],
    "hardly any noise": [(StepEvent(0.5, 0.01), 5)],
}


@pytest.mark.soak
@pytest.mark.parametrize("entries", RUNS.values(), ids=RUNS)
def test_dp_accounting_alone_gives_the_epsilon_of_the_ledger(entries):
    """The ledger's has wider bins here, which add a thousandth at most."""
    found = recompute_epsilon([(plain(event), count) for event, count in entries], 1e-5)
    stated = epsilon(entries, 1e-5)
    assert found == stated or (1 - 2e-3) * stated <= found <= stated * (1 + 1e-9)


@pytest.mark.parametrize(("steps", "delta"), [(3000, 1e-12), (300_000, 1e-8)])
def test_where_transforms_lose_digits_renyi_alone_is_recomputed(steps, delta):
    """Privacy losses would say less than Renyi's bound there, and less than epsilon may be."""
    found = recompute_epsilon([(plain(StepEvent(0.01, 1.0)), steps)], delta)
    assert found == pytest.approx(epsilon([(StepEvent(0.01, 1.0), steps)], delta, "rdp"), rel=1e-9)


@pytest.mark.soak
def test_many_groups_are_recomputed_by_the_costliest_of_them():
    shares = [GroupShare(str(each), 0.2 if each % 2 else 0.1, 0.5) for each in range(70)]
    event = GroupedStepEvent(0.2, 1.5, by_group=tuple(shares))
    found = recompute_epsilon([(plain(event), 20)], 1e-5)
    assert found == pytest.approx(epsilon([(event, 20)], 1e-5, "pld"), rel=2e-3)


@pytest.mark.parametrize(
    "entry",
    [
        ({"nothing": plain(StepEvent(0.01, 90.0))["spend"], **plain(STEP)}, 40),
        ({"steps": plain(STEP)["spend"]}, 40),
        (plain(STEP), -3),
    ],
    ids=["two kinds", "no kind", "negative"],
)
def test_entries_of_no_single_kind_are_not_recomputed(entry):
    with pytest.raises(ValueError, match="expected one of"):
        recompute_epsilon([entry], 1e-5)


@pytest.mark.parametrize("event", [STEP, GROUPED, ReleaseEvent(1.0, 12.0, name="counts")])
def test_an_event_is_compared_as_json_reads_it(event):
    assert json.loads(json.dumps(plain(event))) == plain(event)
    assert event_of(plain(event)) == event


@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"plan": {"epsilon_by_group": {"F": 1.0, "*": 3.0}}}, GroupedStepEvent),
        ({"releases": (CountsRelease(0.1),)}, ReleaseEvent),
    ],
)
def test_runs_of_every_kind_of_entry_pass_every_check(options, kind, tmp_path):
    recipe = Recipe(target="ill", group=("sex",), bounds=(("age", 0.0, 100.0),))
    plan = Plan(batch_size=100, epochs=2, delta=1e-4, **options.get("plan", {}))
    data = RunData(str(save_patients(tmp_path, ill_above=52)), recipe)
    releases = options.get("releases", ())
    config = TrainConfig(data, "dpsgd", plan, Target(3.0, accountant="rdp"), releases=releases)
    place = tmp_path / "run"
    run, _ = train(place, prepared=begin(prepare(config), place))
    assert kind in {type(event) for event, _ in run.entries}
    assert failed(place) == set()


def results(folder) -> dict[str, bool | None]:
    return {check.name: check.passed for check in verify_run(folder).checks}


def failed(folder) -> set[str]:
    return {name for name, passed in results(folder).items() if passed is False}


@pytest.mark.soak
def test_a_whole_run_passes_every_check(finished):
    found = {check.name: check.found for check in verify_run(finished.folder).checks}
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
    shutil.copy(finished.folder / layout.ENCODER, tmp_path)  # predictions need it; it has no checksum there
    (tmp_path / layout.PAGE).unlink()  # not everything is handed on
    assert results(tmp_path) == found


@pytest.mark.soak
@pytest.mark.parametrize("name", [layout.CONFIG, layout.MODEL, layout.RECORD, layout.PAGE, layout.CARD])
def test_a_changed_or_missing_file_is_found(finished, name):
    path = finished.folder / name
    path.write_bytes(path.read_bytes() + b" ")
    found = {check.name: check for check in verify_run(finished.folder).checks}
    assert found["files"].found["changed"] == [name]
    assert found["files"].passed is False
    assert found["card"].passed is (name != layout.MODEL)
    path.unlink()
    files = verify_run(finished.folder).checks[0]
    # Without its configuration, what is left is read as a copy of the shareable files.
    assert files.found["missing"] == ([] if name == layout.CONFIG else [name])


@pytest.mark.soak
def test_a_ledger_beside_shareable_files_is_read(finished):
    """A copy for an auditor has the ledger too; without its configuration it is a copy all the same."""
    (finished.folder / layout.CONFIG).unlink()
    assert results(finished.folder)["ledger"]
    path = finished.folder / layout.LEDGER
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert failed(finished.folder) == {"ledger"}


@pytest.mark.soak
def test_a_file_that_no_list_names_and_lists_that_contradict_each_other_are_found(finished):
    manifest, given = finished.folder / layout.MANIFEST, finished.folder / layout.GIVEN
    kept = manifest.read_text(), given.read_text()
    manifest.write_text("")
    assert layout.CONFIG in verify_run(finished.folder).checks[0].found["unlisted"]
    assert failed(finished.folder) == {"files"}
    manifest.write_text(kept[0])
    given.write_text(kept[1].replace(layout.file_digest(finished.folder / layout.CARD), "0" * 64))
    assert verify_run(finished.folder).checks[0].found["changed"] == [layout.CARD]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "link"])
def test_files_outside_of_the_folder_are_not_read(finished, name):
    secret = finished.folder.parent / "secret"
    secret.write_text("secret")
    (finished.folder / "link").symlink_to(secret)
    given = finished.folder / layout.GIVEN
    given.write_text(f"{given.read_text()}{layout.file_digest(secret)}  {name}\n")
    files = verify_run(finished.folder).checks[0]
    assert files.passed is False
    assert files.found["changed"] == [name]


@pytest.mark.soak
@pytest.mark.parametrize("name", [layout.SETTINGS, layout.CARD, layout.LEDGER])
def test_what_is_no_file_of_the_folder_is_refused(finished, name):
    path = finished.folder / name
    moved = path.rename(finished.folder.parent / "moved")
    path.symlink_to(moved)
    with raises_field(DataError, name):
        verify_run(finished.folder)
    path.unlink()
    os.mkfifo(path)
    with raises_field(DataError, name):
        verify_run(finished.folder)


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
def test_entries_that_ledger_and_epsilon_would_read_differently_are_refused(finished):
    def twice(settings):
        (event, count), *_ = settings["entries"]
        settings["entries"] = [[event, 1 - count], [event, count]]

    def two_kinds(settings):
        cheap = {**settings["entries"][0][0]["spend"], "noise_multiplier": 1e6}
        settings["entries"][0][0] = {"nothing": cheap, **settings["entries"][0][0]}

    kept = (finished.folder / layout.SETTINGS).read_text()
    for change in (twice, two_kinds):
        (finished.folder / layout.SETTINGS).write_text(kept)
        rewrite(finished.folder, change)
        with raises_field(DataError, layout.SETTINGS):
            verify_run(finished.folder)


@pytest.mark.soak
@pytest.mark.parametrize("name", [layout.CARD, layout.PAGE])
def test_a_card_that_states_two_epsilons_fails(finished, name):
    path = finished.folder / name
    stated = "Training was (0.1, 0.0001)-differentially private for each training example."
    path.write_text(f"{stated}\n{path.read_text()}")
    assert {"files", "epsilon"} <= failed(finished.folder)


@pytest.mark.soak
def test_settings_with_another_delta_than_the_card_fail(finished):
    rewrite(finished.folder, lambda settings: settings["plan"].update(delta=0.005))
    assert failed(finished.folder) == {"epsilon"}


@pytest.mark.soak
def test_an_epsilon_in_the_thousands_is_stated_in_six_digits(finished):
    settings = json.loads((finished.folder / layout.SETTINGS).read_text())
    entries = [({"spend": {**settings["entries"][0][0]["spend"], "noise_multiplier": 0.04}}, 7)]
    epsilon_of_them = recompute_epsilon(entries, settings["plan"]["delta"])
    assert epsilon_of_them > 1000

    def other(settings):
        settings["entries"] = entries

    stated = f"Training was ({shown_epsilon(epsilon_of_them):g}, {settings['plan']['delta']:g})-"
    for name in (layout.CARD, layout.PAGE):
        path = finished.folder / name
        path.write_text(re.sub(r"Training was \([^)]*\)-", stated, path.read_text()))
    rewrite(finished.folder, other)
    assert "epsilon" not in failed(finished.folder)


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


@pytest.mark.soak
def test_notes_on_the_data_are_listed(finished):
    notes = json.loads((finished.folder / layout.CONFIG).read_text())["facts"]["notes"]
    assert list(verify_run(finished.folder).notes) == notes


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


@pytest.mark.parametrize(
    "arguments",
    [[], ["none"], ["empty"], ["run", "2"], ["run", "0"], ["run", "nan"], ["run", "x"], ["run", "1e-6", "1"]],
)
def test_the_file_for_auditors_refuses_what_it_cannot_compute(tmp_path, monkeypatch, capsys, arguments):
    monkeypatch.chdir(tmp_path)
    for name in ("run", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "settings.json").write_text('{"entries": [], "plan": {"delta": 1e-5}}')
    (tmp_path / "empty" / "settings.json").write_text("{}")
    with pytest.raises(SystemExit) as end:
        recompute.main(arguments)
    assert isinstance(end.value.code, str)
    assert capsys.readouterr().out == ""
