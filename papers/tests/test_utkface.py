"""UTKFace is read from a zip file or a folder; what the names of files say is class, group and age."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from equidp.data import open_source
from support.data_folders import empty_source_folder

FACES = [(age, gender, ethnicity) for age in range(10, 50, 2) for gender in (0, 1) for ethnicity in range(5)]
ODD = ["39_1_20170116174525125.jpg.chip.jpg", "61_3_20170109142408075.jpg.chip.jpg"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder for UTKFace of EQUIDP_DATA."""
    return empty_source_folder("utkface", tmp_path, monkeypatch)


def encode_face(level: int, side: int = 48) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), level, np.uint8)).save(file, "PNG")
    return file.getvalue()


def made_up() -> dict[str, bytes]:
    """Grey faces, as bright as their age."""
    found = {f"{age}_{gender}_{race}_2017{at:013d}.jpg.chip.jpg": encode_face(age)
             for at, (age, gender, race) in enumerate(FACES)}  # fmt: skip
    return found | dict.fromkeys(ODD, encode_face(0))


def write_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "UTKFace.zip", "w") as archive:
        for name, content in made_up().items():
            archive.writestr(f"UTKFace/{name}", content)
        archive.writestr("__MACOSX/UTKFace/._20_0_0_2017.jpg", b"of another system")


def write_folder(folder: Path) -> None:
    (folder / "UTKFace").mkdir()
    for name, content in made_up().items():
        (folder / "UTKFace" / name).write_bytes(content)
    (folder / "UTKFace" / "README.txt").write_text("no image")


LAYOUTS = {"zip": write_zip, "folder": write_folder}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gives_gender_by_ethnicity(layout, folder):
    LAYOUTS[layout](folder)
    split = open_source("papers.utkface:UTKFace").split(0)
    assert (len(split.train), len(split.test)) == (160, 40)
    assert split.train.class_names == ("male", "female")
    assert split.train.group_names == ("White", "Black", "Asian", "Indian", "Others")
    assert split.train.inputs.shape[1:] == (3, 48, 48)
    assert (split.train.group_sizes() + split.test.group_sizes()).tolist() == [40] * 5
    assert split.notes == ("2 of 202 images were left out: their names lack a field.",)
