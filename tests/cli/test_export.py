"""`equidp export` names the files that it wrote, and what of them epsilon does not cover."""

from __future__ import annotations

import json

import pytest

from support.command import equidp_here, people

__all__ = ["people"]  # a fixture

TRAIN = ("--target", "income", "--group", "sex", "--method", "dpsgd", "--epochs", "1", "--batch-size", "40")


@pytest.fixture(scope="module")
def run(people):
    """Folder of a run on a table whose categories epsilon does not cover."""
    noise = ("--noise-multiplier", "2", "--accountant", "rdp")
    done = equidp_here("train", "people.csv", *TRAIN, *noise, "--out", "run", cwd=people)
    assert done.returncode == 0, done.stderr
    return people / "run"


@pytest.mark.soak
def test_the_command_says_what_it_wrote_and_what_it_left_out(run, tmp_path):
    done = equidp_here("export", str(run), "--to", "safetensors,hf-card", "--out", "new", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("new: model.safetensors, README.md, model.json\n")
    assert "differentially private" in done.stdout
    assert "--include-sensitive" in done.stdout
    assert "categories of job" in done.stdout
    assert {path.name for path in (tmp_path / "new").iterdir()} == {
        *("model.safetensors", "README.md", "model.json"),
    }


@pytest.mark.soak
def test_sensitive_figures_are_named_where_they_are_included(run, tmp_path):
    given = ("--to", "safetensors", "--out", "new", "--include-sensitive")
    done = equidp_here("export", str(run), *given, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Sensitive" in done.stdout
    assert "categories of job" in done.stdout
    assert "encoder" in json.loads((tmp_path / "new" / "model.json").read_text())


@pytest.mark.soak
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--to", "onyx"), "unknown format 'onyx'"),
        (("--to", ""), "--to has no value"),
        ((), "--to"),
        (("--to", "safetensors", "--out", "."), "is there already"),
        (("--to", "skops", "--out", "new"), "--include-sensitive"),
    ],
)
def test_what_cannot_be_exported_is_refused_and_leaves_nothing(run, tmp_path, given, said):
    if "skops" in given:
        pytest.importorskip("skops")
    done = equidp_here("export", str(run), *given, cwd=tmp_path)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
