"""A method, a model, a loss and data of the user's own are compared as they are now, never as they were."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from joblib.externals.loky import get_reusable_executor

import equidp
from equidp.comparison.plan import named_methods
from equidp.digest import object_digest
from equidp.training.plan import Plan

HELPER = """
def scale():
    return SHARE

SHARE = 1.0
"""
METHOD = '''
"""A user's parts, in a package, which use another module of it."""
from dataclasses import dataclass
import torch
from torch import nn
import equidp
from sklearn.metrics import fbeta_score
from own_lab import helper


@dataclass(frozen=True)
class Soft(equidp.Policy):
    """Weighs by bound / (norm + softness)."""

    longest: float = 1.0
    softness: float = 0.5

    def weight(self, state, norm, group):
        return helper.scale() * self.longest / (norm + self.softness)

    def sensitivity(self, state):
        return self.longest


def make_model(shape, classes):
    from .widths import WIDTH
    return nn.Sequential(nn.Linear(shape[0], WIDTH), nn.Tanh(), nn.Linear(WIDTH, classes))


def smooth(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.2)


def f1_of(found):
    return fbeta_score(found.hits, found.predicted_positive, beta=1.0, zero_division=0.0)


f1 = equidp.Metric("f1", f1_of, higher_is_better=True, range=(0, 1))


class Source:
    def split(self, seed):
        generator = torch.Generator().manual_seed(seed)

        def part(n):
            inputs = torch.randn(n, 4, generator=generator)
            groups = (torch.rand(n, generator=generator) < 0.3).long()
            targets = (inputs[:, 0] + groups * inputs[:, 1] > 0).long()
            return equidp.GroupedDataset(inputs, targets, groups, ("a", "b"), ("no", "yes"))

        return equidp.DataSplit(part(160), part(80))
'''
SOURCES = {"method": METHOD, "helper": HELPER, "widths": "WIDTH = 3\n", "__init__": ""}
PARTS = {
    "methods": ["dpsgd", "own_lab.method:Soft"],
    "plan": Plan(batch_size=40, epochs=2, delta=1e-4, learning_rate=0.5),
    "seeds": 1,
    "jobs": 1,
}


def write(folder: Path, **changed: str) -> None:
    """The package, anew."""
    (folder / "own_lab").mkdir(exist_ok=True)
    shutil.rmtree(folder / "own_lab" / "__pycache__", ignore_errors=True)
    for name, source in {**SOURCES, **changed}.items():
        (folder / "own_lab" / f"{name}.py").write_text(source)
    for name in [each for each in sys.modules if each.partition(".")[0] == "own_lab"]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """The current folder, with the user's package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(tmp_path)
    yield tmp_path
    for name in [each for each in sys.modules if each.partition(".")[0] == "own_lab"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def kept_runs(tmp_path_factory):
    """A folder of runs, each of which is trained once for all tests that ask for it."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def new_workers(lab):
    """Worker processes that start in the user's folder, whatever ran before in this process."""
    get_reusable_executor().shutdown(wait=True)


def own(name: str) -> Any:
    """A part of the user's module, as it is now."""
    return getattr(importlib.import_module("own_lab.method"), name)


def own_plan() -> Plan:
    return Plan(model="own_lab.method:make_model", batch_size=40, epochs=2, delta=1e-4, loss=own("smooth"))


def figures(**settings) -> dict[str, tuple[float, float]]:
    """Loss and own metric over all test examples, by method."""
    given = {**PARTS, "plan": own_plan(), "metric": own("f1"), **settings}
    comparison = equidp.compare("own_lab.method:Source", **given)
    rows = comparison.results[comparison.results["group"] == "all"]
    return dict(zip(rows["method"], zip(rows["loss"], rows["f1"], strict=True), strict=True))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("file", "old", "new", "changes"),
    [
        ("helper", "SHARE = 1.0", "SHARE = 0.25", {"own_lab.method:Soft"}),
        ("widths", "WIDTH = 3", "WIDTH = 4", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "label_smoothing=0.2", "label_smoothing=0.4", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "groups * inputs[:, 1] > 0", "inputs[:, 1] > 0", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "beta=1.0", "beta=2.0", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "Weighs by", "Weights are", set()),
    ],
    ids=["constant", "inner import", "loss", "source", "metric", "words"],
)
def test_changing_one_line_of_a_part_changes_the_figures_that_it_makes(
    lab, kept_runs, file, old, new, changes
):
    before = figures(directory=kept_runs)
    assert old in SOURCES[file]
    write(lab, **{file: SOURCES[file].replace(old, new)})
    after = figures(directory=kept_runs)
    assert {name for name in before if before[name] != after[name]} == changes
    if "beta" in new:  # stored runs are read with another metric
        assert all(before[name][0] == after[name][0] for name in before)
    write(lab)
    assert figures(directory=kept_runs) == before


@pytest.mark.soak
def test_worker_processes_run_the_code_that_is_asked_for(lab, new_workers):
    """Workers are kept from one comparison to the next, with the modules that they have imported."""
    runs = {"seeds": 2, "jobs": 2}
    before = figures(**runs)
    write(lab, helper=HELPER.replace("SHARE = 1.0", "SHARE = 0.25"))
    after = figures(**runs)
    assert figures(seeds=2, directory="again") == after != before


NOTEBOOK = """
from dataclasses import dataclass
import sys
from torch import nn
import equidp

@dataclass(frozen=True)
class Halved(equidp.Policy):
    longest: float = 1.0
    def weight(self, state, norm, group):
        return (self.longest / norm).clamp(max=SHARE)
    def sensitivity(self, state):
        return self.longest

SHARE = 1.0

def make_model(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))

if __name__ == "__main__":
    plan = equidp.Plan(model=make_model, batch_size=300, epochs=1)
    comparison = equidp.compare("digits", methods=[Halved(), Halved(0.5)], seeds=1, plan=plan, jobs=2)
    print(sorted(set(comparison.results["method"])))
"""


@pytest.mark.soak
def test_objects_of_a_notebook_reach_worker_processes(tmp_path):
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    done = subprocess.run([sys.executable, "notebook.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "['Halved longest=0.5', 'Halved longest=1', 'sgd']\n", done.stderr


@dataclass(frozen=True)
class Lower(equidp.Policy):
    """Clips at a public bound."""

    longest: float = 1.0
    share: float = 0.5

    def weight(self, state, norm, group):
        return (self.share * self.longest / norm).clamp(max=1.0)

    def sensitivity(self, state):
        return self.share * self.longest


def test_methods_have_clear_names_that_differ():
    given = [Lower, Lower(), Lower(2.0), equidp.DPSGD(2.0), "dpsgd", equidp.SGD()]
    assert list(named_methods(given)) == [
        "sgd",
        "Lower",
        "Lower longest=1",
        "Lower longest=2",
        "dpsgd clipping_bound=2",
        "dpsgd",
    ]


HIDDEN = {
    "cached": "import functools\n@functools.lru_cache\ndef part(): return 1.0",
    "partial": "import functools\ndef f(): return 1.0\npart = functools.partial(f)",
    "listed": "def f(): return 1.0\npart = [f]",
    "property": "import functools\nclass part:\n    @functools.cached_property\n    def k(self): return 1.0",
    "layer": "from torch import nn\nclass Own(nn.Module):\n    def forward(self, x): return 1.0 * x\n"
    "head = nn.Sequential(Own())\ndef part(x): return head(x)",
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_digests_follow_code_of_objects_that_code_names(lab, kind):
    def digest(source):
        write(lab, method=source)
        return object_digest(importlib.import_module("own_lab.method").part)

    before = digest(HIDDEN[kind])
    assert digest(HIDDEN[kind].replace("1.0", "2.0")) != before
    assert digest(HIDDEN[kind]) == before
