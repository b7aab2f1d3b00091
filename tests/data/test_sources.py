"""Named datasets are what the papers say they are."""

from __future__ import annotations

import pytest
import torch

from equidp.data import open_source
from equidp.errors import SettingError
from support.errors import raises_field


def test_digits_keep_a_tenth_of_the_eights_in_training_and_all_in_the_test_set():
    split = open_source("digits").split(0)
    sizes = split.train.group_sizes()
    assert sizes[8] == 13
    assert (sizes[torch.arange(10) != 8] > 125).all()
    assert split.test.group_sizes()[8] > 40
    assert split.train.inputs.shape[1:] == (1, 8, 8)
    assert 0 <= float(split.train.inputs.min()) < float(split.train.inputs.max()) <= 1


@pytest.mark.soak
def test_adult_has_xus_rows_groups_and_attributes(real_data):
    split = open_source("adult").split(0)
    assert (len(split.train), len(split.test)) == (36177, 9045)
    assert (split.train.group_sizes() + split.test.group_sizes()).tolist() == [30527, 14695]
    assert split.train.inputs.shape[1] == 40
    assert 0 <= float(split.test.inputs.min()) < float(split.test.inputs.max()) <= 1
    assert any("epsilon" in note for note in split.notes)


def test_esipovas_adult_is_balanced_by_sex_and_standardised(real_data):
    split = open_source("adult-esipova").split(0)
    assert all(
        abs(size - 14000) < 400 for size in (split.train.group_sizes() + split.test.group_sizes()).tolist()
    )
    assert split.train.inputs[:, :5].mean(dim=0).abs().max() < 1e-4
    assert (split.train.inputs[:, :5].std(dim=0) - 1).abs().max() < 1e-2
    assert torch.equal(split.train.inputs[:, -1].long(), split.train.groups)


@pytest.mark.soak
def test_dutch_has_the_papers_rows_groups_and_attributes(real_data):
    split = open_source("dutch").split(0)
    assert (len(split.train), len(split.test)) == (48336, 12084)
    assert split.train.group_names == ("Male", "Female")
    assert (split.train.group_sizes() + split.test.group_sizes()).tolist() == [30147, 30273]
    assert int(split.train.targets.sum() + split.test.targets.sum()) == 28763
    assert split.train.inputs.shape[1] == 35
    assert 0 <= float(split.test.inputs.min()) < float(split.test.inputs.max()) <= 1


@pytest.mark.soak
def test_esipovas_dutch_is_binary_throughout_with_sex_among_the_inputs(real_data):
    split = open_source("dutch-esipova").split(0)
    assert split.train.inputs.shape[1] == 59
    assert set(split.train.inputs.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(split.train.inputs[:, -1].long(), split.train.groups)
    assert split.notes == ()


@pytest.mark.soak
def test_mnist_has_xus_training_set(real_data):
    split = open_source("mnist").split(0)
    assert len(split.train) == 54649
    assert split.train.group_sizes()[8] == 500
    assert split.train.group_sizes()[2] == 5958
    assert len(split.test) == 10000
    assert abs(float(split.test.inputs.mean())) < 0.02
    assert not torch.equal(split.train.inputs, open_source("mnist").split(1).train.inputs)


def test_unknown_names_and_settings_that_do_not_belong_are_refused():
    with raises_field(SettingError, "data", "'adult'"):
        open_source("adlut")
    for settings in ({"target": "x"}, {"group": "x"}, {"test_share": 0.3}, {"missing": "category"}):
        with raises_field(SettingError, *settings, "'digits'"):
            open_source("digits", **settings)


def test_a_table_without_groups_is_told_that_its_target_may_be_one(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,ill\n" + "".join(f"{20 + row},{'yes' if row % 3 else 'no'}\n" for row in range(40)))
    with raises_field(SettingError, "group", "--group ill"):
        open_source(str(path), target="ill")
    assert open_source(str(path), target="ill", group=["ill"]).split(0).train.num_groups == 2
