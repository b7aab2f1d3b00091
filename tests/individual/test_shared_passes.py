"""What the first of several processes finds of single examples is what one process finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from pandas.testing import assert_frame_equal

from support import sharded
from support.processes import together


@pytest.fixture(scope="module")
def everything():
    """Of one process, and of each of two."""
    return sharded.accounted(), sharded.watched(), together(2, sharded.everything)


@pytest.mark.soak
def test_several_processes_count_what_one_counts(everything):
    """Weights are those of one process to rounding, so a share may fall into the next cell of the grid."""
    alone, _, ((first, *_), (second, *_)) = everything
    assert second == {}  # the first process keeps histories
    for name, (counts, groups, weights) in first.items():
        expected = alone[name]
        torch.testing.assert_close(weights, expected[2], rtol=1e-4, atol=1e-5)
        assert (counts.sum(axis=1) == sharded.STEPS).all()
        assert (counts != expected[0]).any(axis=1).mean() < 0.02
        assert (groups.sum(axis=1) == sharded.STEPS).all()
        assert (groups != expected[1]).sum() <= 2
        assert len(np.unique(counts, axis=0)) > 10


@pytest.mark.soak
def test_what_several_processes_cannot_do_is_said(everything):
    for rank, (_, report, _) in enumerate(everything[2]):
        assert report == ("" if rank == 0 else "individual")


@pytest.mark.soak
def test_predictions_records_and_diagnoses_are_those_of_one_process(everything):
    _, expected, found = everything
    outputs, record, figures = found[0][-1]
    torch.testing.assert_close(outputs, expected[0], rtol=1e-4, atol=1e-4)
    assert_frame_equal(record, expected[1], rtol=1e-3, atol=1e-4)
    for table, one in zip(figures, expected[2], strict=True):
        assert_frame_equal(table, one, rtol=0.02, atol=1e-3)


@pytest.mark.soak
def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    together(2, sharded.resumed, tmp_path, 6)
    for count, done, until in ((3, 6, 10), (1, 10, 12)):
        found, *_ = together(count, sharded.resumed, tmp_path, until)
        for lost, counts in found.values():
            assert lost == 0
            assert (counts.sum(axis=1) == done).all()
            assert len(np.unique(counts, axis=0)) > 10  # not the worst case
