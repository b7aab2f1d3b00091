"""UTKFace is read from a zip file or a folder; what the names of files say is class, group and age."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equidp.data import open_source
from equidp.errors import DataError, SettingError
from papers.utkface import UTKFace
from support.data_folders import empty_source_folder
from support.errors import raises_field

FACES = [(age, gender, ethnicity) for age in range(10, 50, 2) for gender in (0, 1) for ethnicity in range(5)]
ODD = ["39_1_20170116174525125.jpg.chip.jpg", "61_3_20170109142408075.jpg.chip.jpg"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder for UTKFace of EQUIDP_DATA."""
    return empty_source_folder("utkface", tmp_path, monkeypatch)


NAMES = {
    "gender": ("male", "female"),
    "ethnicity": ("White", "Black", "Asian", "Indian", "Others"),
    "under-30": ("30 and over", "under 30"),
}


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


@pytest.mark.parametrize(
    ("target", "group"), [("gender", "ethnicity"), ("ethnicity", "under-30"), ("under-30", "gender")]
)
def test_each_face_keeps_what_its_name_says(target, group, folder):
    write_folder(folder)
    (whole,) = UTKFace(target=target, group=(group,)).everything()
    ages = (whole.inputs.mean(dim=(1, 2, 3)) * 63.75 + 127.5).round().long()  # as bright as their age
    young = (ages < 30).long().tolist()
    assert (whole.group_names, whole.class_names) == (NAMES[group], NAMES[target])
    if target == "under-30":
        assert whole.targets.tolist() == young
    if group == "under-30":
        assert whole.groups.tolist() == young
    if {target, group} == {"gender", "ethnicity"}:
        cells = torch.bincount(whole.groups * len(whole.class_names) + whole.targets)
        assert cells.tolist() == [20] * 10


def test_several_groups_are_crossed(folder):
    write_folder(folder)
    (whole,) = UTKFace(target="under-30", group=("gender", "ethnicity")).everything()
    assert whole.group_names[:6] == ("male, White", "male, Black", "male, Asian", "male, Indian",
                                     "male, Others", "female, White")  # fmt: skip
    assert whole.group_sizes().tolist() == [20] * 10


@pytest.mark.parametrize("name", ["papers.utkface:YU", "papers.utkface:YOUNG"])
def test_yus_faces_are_of_four_races_with_as_many_of_each_class(name, folder):
    write_folder(folder)
    gone = [
        path
        for path in (folder / "UTKFace").iterdir()
        if path.name.startswith(("20_0_1", "22_0_1", "38_1_3"))
    ]
    for path in gone:
        path.unlink()
    split, other = open_source(name).split(0), open_source(name).split(1)
    assert split.train.group_names == ("White", "Black", "Asian", "Indian")
    cells = [
        torch.bincount(part.groups * 2 + part.targets, minlength=8) for part in (split.train, split.test)
    ]
    rarest = [20, 18, 20, 19]
    assert sum(cells).tolist() == [count for count in rarest for _ in range(2)]
    assert split.notes[1].startswith("Faces were removed at random")
    assert not torch.equal(split.train.targets, other.train.targets)
    assert torch.equal(split.train.inputs, open_source(name).split(0).train.inputs)


def test_a_target_or_a_group_that_utkface_lacks_names_the_nearest(folder):
    with raises_field(SettingError, "target of UTKFace", "'gender'"):
        open_source("papers.utkface:UTKFace", target="gendre")
    with raises_field(SettingError, "group of UTKFace", "'ethnicity'"):
        open_source("papers.utkface:UTKFace", group="ethnic")


def test_a_seed_gives_one_split_and_another_seed_another(folder):
    write_zip(folder)
    first, again, other = (
        open_source("papers.utkface:UTKFace").split(seed).train.targets for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_faces_of_another_size_are_resized(folder):
    write_folder(folder)
    path = folder / "UTKFace" / next(iter(made_up()))
    path.write_bytes(encode_face(20, side=200))
    assert open_source("papers.utkface:UTKFace").split(0).train.inputs.shape[1:] == (3, 48, 48)


def test_files_that_are_missing_cut_or_foreign_are_refused(folder):
    with raises_field(DataError, "dataset"):
        open_source("papers.utkface:UTKFace").split(0)
    (folder / "UTKFace.zip").write_bytes(b"PK no zip")
    with pytest.raises(DataError, match="zip"):
        open_source("papers.utkface:UTKFace").split(0)
    with zipfile.ZipFile(folder / "UTKFace.zip", "w") as archive:
        archive.writestr("UTKFace/face.jpg", encode_face(3))
    with pytest.raises(DataError, match="no images"):
        open_source("papers.utkface:UTKFace").split(0)
    with zipfile.ZipFile(folder / "UTKFace.zip", "w") as archive:
        archive.writestr("UTKFace/20_0_0_2017.jpg", encode_face(3)[:60])
    with raises_field(DataError, "image"):
        open_source("papers.utkface:UTKFace").split(0)


@pytest.mark.soak
def test_the_real_file_has_23704_faces(real_data, monkeypatch):
    monkeypatch.setenv("EQUIDP_DATA", str(real_data))
    split = open_source("papers.utkface:UTKFace").split(0)
    assert len(split.train) + len(split.test) == 23704
    assert split.notes == ("3 of 23707 images were left out: their names lack a field.",)
