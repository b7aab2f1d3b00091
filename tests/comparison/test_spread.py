"""Calls are spread over the processes or the backend that the user chose; what finished is kept."""

from __future__ import annotations

import os
import time
from pathlib import Path

import joblib
import pytest

import equidp
from comparison.test_compare import PLAN, Toy
from equidp.comparison import cells
from equidp.comparison.cells import Cell
from equidp.errors import SettingError
from support.errors import raises_field


class Deadly(Cell):
    """A run whose process dies, once the other runs are kept."""

    def train(self, data):
        folder = Path(os.environ["DEADLY"])
        while sum("." not in each.name for each in folder.glob("*")) < 3:  # without locks and drafts
            time.sleep(0.05)
        os._exit(9)


@pytest.mark.soak
def test_of_four_workers_one_is_killed_and_what_finished_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("DEADLY", str(tmp_path / "runs"))
    resolved = PLAN.with_usual_noise().resolve(160)
    runs = [Cell(Toy(), resolved, seed) for seed in range(3)]
    with raises_field(SettingError, "jobs", "start the same again"):
        cells.run_cells([*runs, Deadly(Toy(), resolved, 3)], tmp_path / "runs", 4)
    assert all(cells.CellResult.kept(cells.Store(tmp_path / "runs"), each.key) for each in runs)


@pytest.mark.soak
def test_a_comparison_on_a_cluster_has_the_results_of_one_without(tmp_path):
    distributed = pytest.importorskip("distributed")
    plan = equidp.Plan(batch_size=300, epochs=1)
    asked = {"methods": ["dpsgd"], "seeds": 2, "plan": plan}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):
        there = equidp.compare(**asked, directory=tmp_path / "there")
    here = equidp.compare(**asked, directory=tmp_path / "here", jobs=2)
    assert there.results.equals(here.results)
