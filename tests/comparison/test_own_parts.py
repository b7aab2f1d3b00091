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
from equidp.digest import code_digest, object_digest
from equidp.errors import DataError, PolicyError, SettingError
from equidp.training.plan import Plan
from support.errors import raises_field

HELPER = """
def scale():
    return SHARE

SHARE = 1.0
"""
METHOD = '''
"""A user's parts, in a package, which use another module of it."""
from dataclasses import dataclass, field
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


tight = Soft(0.25)


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


class Empty:
    def split(self, seed):
        return None


@dataclass
class Thawed(equidp.Policy):
    longest: float = 1.0

    def weight(self, state, norm, group):
        return norm

    def sensitivity(self, state):
        return self.longest


@dataclass(frozen=True)
class Abstract(equidp.Policy):
    longest: float = 1.0


@dataclass(frozen=True)
class Needy(Soft):
    limit: float = field(kw_only=True)


@dataclass(frozen=True)
class Greedy(Soft):
    def weight(self, state, norm, group):
        return torch.ones_like(norm)
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
        ("method", "(norm + self.softness)", "(2 * norm + self.softness)", {"own_lab.method:Soft"}),
        ("helper", "return SHARE", "return 0.5 * SHARE", {"own_lab.method:Soft"}),
        ("helper", "SHARE = 1.0", "SHARE = 0.25", {"own_lab.method:Soft"}),
        ("widths", "WIDTH = 3", "WIDTH = 4", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "nn.Tanh()", "nn.ReLU()", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "label_smoothing=0.2", "label_smoothing=0.4", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "groups * inputs[:, 1] > 0", "inputs[:, 1] > 0", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "beta=1.0", "beta=2.0", {"sgd", "dpsgd", "own_lab.method:Soft"}),
        ("method", "Weighs by", "Weights are", set()),
    ],
    ids=["policy", "helper", "constant", "inner import", "model", "loss", "source", "metric", "words"],
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


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_objects_of_one_class_are_methods_of_their_own(lab, tmp_path):
    methods = ["dpsgd", Lower(1.0), Lower(2.0, 0.25), Lower(2.0)]
    comparison = equidp.compare(
        "own_lab.method:Source",
        **{**PARTS, "methods": methods, "plan": own_plan(), "metric": own("f1")},
    )
    names = (
        "sgd",
        "dpsgd",
        "Lower longest=1, share=0.5",
        "Lower longest=2, share=0.25",
        "Lower longest=2, share=0.5",
    )
    assert comparison.setup.methods == names
    comparison.write_report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert all(text in page for text in ("Lower longest=2, share=0.25", "own_lab.method:make_model", "f1"))


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


def test_settings_of_a_plan_reach_a_class_by_path_and_not_a_policy_that_was_made(lab):
    equidp.METHODS  # noqa: B018
    plan = Plan()
    assert plan.for_method("own_lab.method:Soft").policy.longest == 1.0
    plan = Plan(method_settings={"longest": 3.0, "softness": 0.1})
    assert (
        plan.for_method("own_lab.method:Soft").policy.longest,
        plan.for_method("own_lab.method:tight").policy.longest,
    ) == (
        3.0,
        0.25,
    )
    own = Plan(by_method={"own_lab.method:Soft": {"longest": 4.0, "epochs": 3}})
    resolved = own.for_method("own_lab.method:Soft").with_usual_noise().resolve(1000)
    assert (resolved.policy.longest, resolved.plan.epochs) == (4.0, 3)


@pytest.mark.soak
def test_an_estimator_takes_parts_by_import_path(lab):
    data = toy_arrays()
    estimator = equidp.PrivateClassifier("own_lab.method:Soft", epochs=1, model="own_lab.method:make_model")
    assert estimator.fit(*data).run_.facts.method["method"] == "Soft"


def toy_arrays():
    data = importlib.import_module("own_lab.method").Source().split(0).train
    return data.inputs.numpy(), data.targets.numpy()


@pytest.mark.parametrize(
    ("settings", "error", "field", "given"),
    [
        ({"methods": ["own_lab.method:Sofd"]}, SettingError, "method", "no attribute 'Sofd'"),
        ({"methods": ["own_lab.methods:Soft"]}, SettingError, "method", "No module named 'own_lab.methods'"),
        ({"methods": ["own_lab.method:smooth"]}, SettingError, "method", "of type function"),
        ({"methods": ["own_lab.method:Thawed"]}, PolicyError, "method", "Thawed is not a frozen dataclass"),
        ({"methods": ["own_lab.method:Abstract"]}, PolicyError, "method", "lacks bound"),
        ({"methods": ["own_lab.method:Needy"]}, SettingError, "method", "no default for limit"),
        ({"methods": ["own_lab.method:Greedy"]}, PolicyError, "weight", "bound 1.0"),
        ({"methods": [3]}, SettingError, "method", "3"),
        ({"plan": {"model": "own_lab.method:make_modle"}}, SettingError, "model", "make_modle"),
        ({"plan": {"loss": "smooth"}}, SettingError, "loss", "'smooth'"),
        ({"data": "own_lab.method:Empty"}, DataError, "data", "NoneType"),
        ({"data": "own_lab.method:smooth"}, SettingError, "data", "of type function"),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(lab, settings, error, field, given):
    whole = {"data": "own_lab.method:Source", **PARTS, **settings}
    with raises_field(error, field, given):
        equidp.compare(**{**whole, "plan": Plan(**whole["plan"]) if "plan" in settings else PARTS["plan"]})
    assert not list(lab.rglob("facts.json"))


HIDDEN = {
    "cached": "import functools\n@functools.lru_cache\ndef part(): return 1.0",
    "partial": "import functools\ndef f(): return 1.0\npart = functools.partial(f)",
    "listed": "def f(): return 1.0\npart = [f]",
    "slots": "class S:\n    __slots__ = ()\n    def f(self): return 1.0\ns = S()\ndef part(): return s.f()",
    "list": "class L(list):\n    def f(self): return 1.0\ns = L()\ndef part(): return s.f()",
    "number": "class L(float):\n    def f(self): return 1.0\ns = L()\ndef part(): return s.f()",
    "metaclass": "class M(type):\n    k = 1.0\nclass part(metaclass=M): pass",
    "property": "import functools\nclass part:\n    @functools.cached_property\n    def k(self): return 1.0",
    "dispatch": "import functools\nclass part:\n    @functools.singledispatchmethod\n"
    "    def k(self, x): return 1.0",
    "namespace": "import types\ndef f(): return 1.0\nn = types.SimpleNamespace(f=f)\n"
    "def part(): return n.f()",
    "deque": "import collections\ndef f(): return 1.0\nd = collections.deque([f])\ndef part(): return d[0]()",
    "factory": "import collections\nd = collections.defaultdict(lambda: 1.0)\ndef part(): return d[3]",
    "vectorize": "import numpy as np\ndef f(x): return 1.0\nv = np.vectorize(f)\ndef part(x): return v(x)",
    "layer": "from torch import nn\nclass Own(nn.Module):\n    def forward(self, x): return 1.0 * x\n"
    "head = nn.Sequential(Own())\ndef part(x): return head(x)",
}
BY_NAME = {
    "globals": "def f(): return 1.0\ndef part(): return globals()['f']()",
    "getattr": "from . import helper\ndef part(): return getattr(helper, 'scale')()",
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_digests_follow_code_of_objects_that_code_names(lab, kind):
    def digest(source):
        write(lab, method=source)
        return object_digest(importlib.import_module("own_lab.method").part)

    before = digest(HIDDEN[kind])
    assert digest(HIDDEN[kind].replace("1.0", "2.0")) != before
    assert digest(HIDDEN[kind]) == before


@pytest.mark.parametrize("kind", BY_NAME)
def test_kept_runs_follow_code_that_is_looked_up_by_name(lab, kind):
    def digest(old="", new="", **also):
        write(lab, method=BY_NAME[kind], **also)
        source = lab / "own_lab" / "method.py"
        source.write_text(source.read_text().replace(old, new) if old else source.read_text())
        return code_digest(importlib.import_module("own_lab.method").part)

    before = digest()
    changed = HELPER.replace("SHARE = 1.0", "SHARE = 0.25")
    assert before != (digest("1.0", "2.0") if kind == "globals" else digest(helper=changed))
    assert digest(helper=HELPER + "\n# a word\n") == before
    imported = importlib.import_module("own_lab.method")
    (lab / "own_lab" / "method.py").write_text("def part(): return 3.0")
    assert code_digest(imported.part) == before  # the process has not imported that
