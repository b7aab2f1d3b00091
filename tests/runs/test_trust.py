"""A folder of a run from anybody runs no code unless the user trusts it."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from equidp.errors import DataError, EquidpError
from equidp.runs.folder import CONFIG, RUN, SUMS, compare_sums, write_sums
from equidp.runs.saved import open_run

pytestmark = pytest.mark.soak
EVIL = """
from pathlib import Path
Path("ran").touch()
def make(*_): ...
class Evil: ...
"""
PARTS = {
    "method": lambda content: content["config"]["plan"].update(method="evil:Evil"),
    "method of the plan": lambda content: content["plan"]["plan"].update(method="evil:Evil"),
    "model": lambda content: content["config"]["plan"].update(model="evil:make"),
    "model of the plan": lambda content: content["plan"]["plan"].update(model="evil:make"),
    "settings by method": lambda content: content["config"]["plan"].update(by_method={"evil:Evil": {}}),
    "model by method": lambda content: content["config"]["plan"].update(
        by_method={"dpsgd": {"model": "evil:make"}}
    ),
    "loss": lambda content: content["plan"]["plan"].update(loss="evil:make"),
    "release": lambda content: content["config"]["plan"].update(releases=[{"kind": "evil:Evil"}]),
    "release of the plan": lambda content: content["plan"]["plan"].update(releases=[{"kind": "evil:Evil"}]),
    "metric": lambda content: content["config"].update(metric="evil:make"),
    "features": lambda content: content["config"]["data"].update(features="evil:make"),
    "data": lambda content: content["config"]["data"].update(name="evil:Evil"),
}
"""Part of a run -> names evil code for it in the settings of a folder."""
TRUSTED = {"method", "method of the plan", "model", "model of the plan"}


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """The current folder, with a module that leaves a file when it runs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(EVIL)
    yield tmp_path
    sys.modules.pop("evil", None)


def received(finished: Path, place: Path, part: str, *, forged: bool) -> Path:
    """A copy of a run's `share/` that names evil code; forged: of the whole folder."""
    shutil.copytree(finished if forged else finished / "share", place)
    for path in place.rglob("*.json"):
        if path.name in (RUN, CONFIG):
            content = json.loads(path.read_text())
            PARTS[part](content)
            path.write_text(json.dumps(content))
    for path in place.rglob(SUMS):  # whoever can write the files can write these too
        write_sums(path.parent, compare_sums(path.parent))
    return place


@pytest.mark.parametrize(
    ("part", "forged"),
    [*((part, False) for part in PARTS), *((part, True) for part in ("method", "model of the plan", "data"))],
)
def test_a_folder_that_names_code_of_its_own_runs_none(finished, evil, command, part, forged):
    place = received(finished.folder, evil / "received", part, forged=forged)
    if part not in ("metric", "features"):  # which are looked up when they are used
        with pytest.raises(DataError, match="evil:"):
            open_run(place)
    for typed in ("predict received people.csv", "evaluate received", "train --resume received"):
        _, _, err = command(*typed.split(), cwd=evil)
        assert "Traceback" not in err
    command("verify", "received", cwd=evil)
    assert not (evil / "ran").exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("part", sorted(TRUSTED))
def test_trusted_code_is_run(finished, evil, part):
    place = received(finished.folder, evil / "received", part, forged=False)
    with suppress(EquidpError):  # the model may be another one
        open_run(place, trust_code=True)
    assert (evil / "ran").exists()
