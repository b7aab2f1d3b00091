"""CelebA is read in the layout of its page and in Kaggle's, and what is missing or cut is refused."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from equidp.data import open_source
from equidp.data.cache import image_store
from equidp.errors import DataError, SettingError
from papers.celeba import CelebA
from support.data_folders import empty_source_folder
from support.errors import raises_field

ATTRIBUTES = ("5_o_Clock_Shadow", "Eyeglasses", "Male", "Smiling", "Young")
PARTS = [0] * 8 + [1] * 3 + [2] * 4
ROWS = {
    f"{at + 1:06d}.jpg": (part, [-1, 1 if at % 3 else -1, 1 if at % 2 else -1, -1 if at % 4 else 1, 1])
    for at, part in enumerate(PARTS)
}


def grey(name: str) -> int:
    """Brightness of the made-up face of a name."""
    return 10 * int(name[:6])


def encode_face(level: int, size: tuple[int, int] = (178, 218)) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), level, np.uint8)).save(file, "JPEG")
    return file.getvalue()


def of_kaggle(place: Path) -> None:
    folder = place / "img_align_celeba" / "img_align_celeba"
    folder.mkdir(parents=True)
    for name in ROWS:
        (folder / name).write_bytes(encode_face(grey(name)))
    lines = [",".join(["image_id", *ATTRIBUTES])]
    lines += [",".join([name, *map(str, values)]) for name, (_, values) in ROWS.items()]
    (place / "list_attr_celeba.csv").write_text("\n".join(lines))
    lines = ["image_id,partition", *(f"{name},{part}" for name, (part, _) in ROWS.items())]
    (place / "list_eval_partition.csv").write_text("\n".join(lines))


def of_its_page(place: Path, *, zipped: bool) -> None:
    for folder in ("Anno", "Eval", "Img"):
        (place / folder).mkdir()
    with zipfile.ZipFile(place / "Img" / "img_align_celeba.zip", "w") as archive:
        for name in ROWS:
            archive.writestr(f"img_align_celeba/{name}", encode_face(grey(name)))
    if not zipped:
        with zipfile.ZipFile(place / "Img" / "img_align_celeba.zip") as archive:
            archive.extractall(place / "Img")
        (place / "Img" / "img_align_celeba.zip").unlink()
    lines = [str(len(ROWS)), " ".join(ATTRIBUTES) + " "]
    lines += [f"{name}  " + " ".join(f"{value:2d}" for value in values) for name, (_, values) in ROWS.items()]
    (place / "Anno" / "list_attr_celeba.txt").write_text("\n".join(lines) + "\n")
    lines = [f"{name} {part}" for name, (part, _) in ROWS.items()]
    (place / "Eval" / "list_eval_partition.txt").write_text("\n".join(lines) + "\n")


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "kaggle": of_kaggle,
    "page, unpacked": lambda place: of_its_page(place, zipped=False),
    "page, zip": lambda place: of_its_page(place, zipped=True),
}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    """An empty folder for CelebA of EQUIDP_DATA."""
    return empty_source_folder("celeba", tmp_path, monkeypatch)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gives_men_and_women_with_and_without_glasses(layout, place):
    LAYOUTS[layout](place)
    split = open_source("papers.celeba:CelebA").split(0)
    assert (len(split.train), len(split.test)) == (8, 4)  # without the validation part
    assert split.train.class_names == ("Female", "Male")
    assert split.train.group_names == ("no Eyeglasses", "Eyeglasses")
    assert open_source("papers.celeba:CelebA").highlighted_groups == ("no Eyeglasses", "Eyeglasses")
    assert split.notes == ("The validation part of CelebA is left out.",)
    for part, number in ((split.train, 0), (split.test, 2)):
        names = [name for name, (which, _) in ROWS.items() if which == number]
        assert part.inputs.shape == (len(names), 3, 64, 64)
        levels = torch.tensor([grey(name) / 255 for name in names])
        assert torch.allclose(part.inputs.mean(dim=(1, 2, 3)), levels, atol=0.01)
        assert part.targets.tolist() == [(ROWS[name][1][2] + 1) // 2 for name in names]
        assert part.groups.tolist() == [(ROWS[name][1][1] + 1) // 2 for name in names]


def test_any_attribute_is_a_target_or_a_group_and_several_are_crossed(place):
    of_kaggle(place)
    source = open_source("papers.celeba:CelebA", target="Smiling", group=("Male",))
    split = source.split(0)
    assert split.train.class_names == ("no Smiling", "Smiling")
    assert split.train.group_names == source.highlighted_groups == ("Female", "Male")
    assert split.train.targets.tolist() == [1, 0, 0, 0, 1, 0, 0, 0]
    crossed, _ = CelebA(group=("Male", "Eyeglasses")).everything()
    assert crossed.group_names == (
        "Female, no Eyeglasses", "Female, Eyeglasses", "Male, no Eyeglasses", "Male, Eyeglasses",
    )  # fmt: skip
    assert crossed.groups.tolist() == [0, 3, 1, 2, 1, 3, 0, 3]


def test_pixels_are_decoded_once_whatever_the_target(place):
    of_kaggle(place)
    open_source("papers.celeba:CelebA").split(0)
    before = [(each.folder, each.place.stat().st_ino) for each in image_store().entries()]
    CelebA(target="Young", group=("Male",)).everything()
    assert [(each.folder, each.place.stat().st_ino) for each in image_store().entries()] == before
    assert len(before) == 2


def test_an_image_of_another_size_is_resized(place):
    of_kaggle(place)
    path = place / "img_align_celeba" / "img_align_celeba" / "000001.jpg"
    path.write_bytes(encode_face(200, (500, 90)))
    inputs = open_source("papers.celeba:CelebA").split(0).train.inputs
    assert inputs.shape == (8, 3, 64, 64)
    assert float(inputs[0].mean()) == pytest.approx(200 / 255, abs=0.01)


def test_an_attribute_with_a_typo_names_the_nearest(place):
    of_kaggle(place)
    with raises_field(SettingError, "attribute of CelebA", "'Eyeglasses'"):
        open_source("papers.celeba:CelebA", group="Eyeglases").split(0)
    with raises_field(SettingError, "attribute of CelebA", "'Male'"):
        open_source("papers.celeba:CelebA", target="male").split(0)


def test_other_settings_of_files_are_refused_by_name(place):
    with raises_field(SettingError, "test_share"):
        open_source("papers.celeba:CelebA", target="Male", test_share=0.3)


def test_images_that_are_missing_or_cut_are_named(place):
    of_kaggle(place)
    path = place / "img_align_celeba" / "img_align_celeba" / "000003.jpg"
    whole = path.read_bytes()
    path.write_bytes(whole[:300])
    with raises_field(DataError, "image", "000003"):
        open_source("papers.celeba:CelebA").split(0)
    assert not image_store().entries()  # nothing half-made is left
    path.unlink()
    with pytest.raises(DataError, match=r"000003\.jpg"):
        open_source("papers.celeba:CelebA").split(0)
    path.write_bytes(whole)
    (path.parent / "000009.jpg").unlink()  # of the validation part
    (path.parent / "holiday.jpg").write_bytes(b"no image")
    assert len(open_source("papers.celeba:CelebA").split(0).train) == 8


def change_text(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


@pytest.mark.parametrize(
    ("break_it", "named"),
    [
        (
            lambda place: change_text(place / "Anno/list_attr_celeba.txt", "15\n", "202599\n"),
            "202,599",
        ),
        (
            lambda place: change_text(place / "Anno/list_attr_celeba.txt", "15\n", ""),
            "list_attr_celeba",
        ),
        (
            lambda place: change_text(
                place / "Anno/list_attr_celeba.txt", "000001.jpg  -1 -1", "000001.jpg  -1  7"
            ),
            "Eyeglasses",
        ),
        (
            lambda place: change_text(place / "Eval/list_eval_partition.txt", "000002.jpg 0", "000002.jpg 5"),
            "partition",
        ),
        (
            lambda place: change_text(place / "Eval/list_eval_partition.txt", "000002.jpg 0\n", ""),
            r"000002\.jpg",
        ),
        (
            lambda place: (place / "Eval/list_eval_partition.txt").write_text(""),
            "list_eval_partition",
        ),
        (
            lambda place: (place / "Eval/list_eval_partition.txt").unlink(),
            "get CelebA from https",
        ),
        (
            lambda place: (place / "Img/img_align_celeba.zip").write_bytes(b"PK no zip"),
            r"img_align_celeba\.zip",
        ),
    ],
)
def test_lists_that_are_cut_or_do_not_go_together_are_refused(break_it, named, place):
    of_its_page(place, zipped=True)
    break_it(place)
    with pytest.raises(DataError, match=named):
        open_source("papers.celeba:CelebA").split(0)
