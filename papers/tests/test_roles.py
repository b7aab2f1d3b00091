"""--target and --group choose among the columns of a named source, and a run keeps them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

TRAIN = (
    "train",
    "papers.utkface:UTKFace",
    "--target",
    "under-30",
    "--group",
    "gender",
    "--model",
    "logistic",
    "--method",
    "dpsgd",
)
PLAN = (
    "--batch-size",
    "20",
    "--epochs",
    "1",
    "--noise-multiplier",
    "2",
    "--set",
    "privacy.accountant=rdp",
    "--out",
    "run",
)


@pytest.fixture(autouse=True)
def _faces(tmp_path, monkeypatch):
    """Eighty grey faces, half of them under 30."""
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("EQUIDP_DATA", str(tmp_path))
    folder = tmp_path / "utkface" / "UTKFace"
    folder.mkdir(parents=True)
    for at in range(80):
        image = Image.fromarray(np.full((8, 8, 3), 3 * at, np.uint8))
        image.save(folder / f"{10 + at // 2}_{at % 2}_{at % 5}_2017{at:04d}.png")


@pytest.mark.soak
def test_a_run_keeps_target_and_groups(command, tmp_path):
    code, _, err = command(*TRAIN, *PLAN, cwd=tmp_path)
    assert code == 0, err
    card = (tmp_path / "run" / "share" / "card.md").read_text()
    assert "under-30" in card
    assert "female" in card
    code, out, err = command("evaluate", "run", "--trust-code", cwd=tmp_path)
    assert code == 0, err
    assert "female" in out
    assert command("predict", "run", "--trust-code", "--out", "answers.csv", cwd=tmp_path)[0] == 0
    assert "under 30" in (tmp_path / "answers.csv").read_text()


def test_a_typo_is_refused_before_anything_is_spent(command, tmp_path):
    code, _, err = command("train", "papers.utkface:UTKFace", "--group", "gendre", *PLAN, cwd=tmp_path)
    assert (code, "Did you mean 'gender'" in err) == (2, True)
    assert not (tmp_path / "run").exists()
