"""Imports point downwards, the trusted kernel stands alone, and the checker sees each broken rule."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.house import Package, cycles, experimental, offences, private_torch, trusted, upward

_ROOT = Path(__file__).parents[1]
SOUND = {
    "__init__.py": "from equidp.cli import app\n",
    "__main__.py": "from equidp.cli import app\n",
    "errors.py": "import torch\n",
    "_files.py": "from equidp.errors import wrong\n",
    "kernel/__init__.py": "from equidp.kernel.step import step\n",
    "kernel/step.py": "import torch\nfrom equidp.errors import wrong\n",
    "ledger/file.py": "from equidp.kernel.step import step\nfrom equidp._files import write\n",
    "policies/dpsgd.py": "from equidp.kernel import step\nfrom ..kernel.step import step as same\n",
    "cli/__init__.py": "from .train import app\n",
    "cli/train.py": "import json\nimport equidp.policies.dpsgd\n",
}


def package(folder: Path, **changes: str) -> Package:
    """A small package without an offence, with some files changed or added."""
    root = folder / "equidp"
    for name, text in {**SOUND, **changes}.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Package(root)


def seen(found, root: Path) -> set[str]:
    return {f"{each.file.relative_to(root)}:{each.line}" for each in found}


@pytest.mark.soak
def test_the_package_keeps_the_rules_of_the_house():
    found = offences(Package(Path(__file__).parents[1] / "src" / "equidp"))
    assert not found, "\n".join(map(str, found))


def test_a_sound_package_has_no_offence(tmp_path):
    assert offences(package(tmp_path)) == []


@pytest.mark.parametrize(
    "text",
    [
        "\nimport equidp.policies.dpsgd\n",
        "\nfrom equidp.policies import dpsgd\n",
        "\nfrom equidp.policies.dpsgd import DPSGD\n",
        "\nfrom ..policies.dpsgd import DPSGD\n",
        "\nfrom ..policies import dpsgd\n",
        "def late():\n    from equidp.policies import dpsgd\n",
        "if TYPE_CHECKING:\n    from equidp.policies.dpsgd import DPSGD\n",
        "import importlib\nimportlib.import_module('equidp.policies.dpsgd')\n",
    ],
)
def test_every_kind_of_import_is_seen(tmp_path, text):
    made = package(tmp_path, **{"kernel/bad.py": text})
    assert seen(upward(made), made.root) == {"kernel/bad.py:2"}
    assert seen(trusted(made), made.root) == {"kernel/bad.py:2"}
    assert seen(cycles(made), made.root) == set()


def test_cycles_are_named_at_each_of_their_imports(tmp_path):
    made = package(
        tmp_path,
        **{
            "policies/dpsgd.py": "from equidp.kernel import step\n\nfrom equidp.policies.b import x\n",
            "policies/b.py": "def late():\n    from equidp.policies.c import x\n",
            "policies/c.py": "from .dpsgd import DPSGD\n",
        },
    )
    found = list(cycles(made))
    assert seen(found, made.root) == {"policies/dpsgd.py:3", "policies/b.py:2", "policies/c.py:1"}
    assert len(found) == 3
    assert all("cycle" in each.message for each in found)


def test_a_module_that_imports_its_own_package_is_a_cycle(tmp_path):
    made = package(tmp_path, **{"kernel/step.py": "from equidp.kernel import other\n"})
    assert seen(cycles(made), made.root) == {"kernel/__init__.py:1", "kernel/step.py:1"}


@pytest.mark.parametrize("text", ["from equidp import train\n", "import equidp\n", "from .. import train\n"])
def test_the_public_names_are_above_everything(tmp_path, text):
    made = package(tmp_path, **{"cli/train.py": text})
    assert seen(upward(made), made.root) == {"cli/train.py:1"}


def test_a_folder_without_a_place_is_an_offence(tmp_path):
    made = package(tmp_path, **{"utils/all.py": ""})
    assert seen(upward(made), made.root) == {"utils/all.py:1"}


@pytest.mark.parametrize("name", ["models", "_provenance", "_files"])
def test_the_trusted_kernel_may_not_import_all_that_stands_below_it(tmp_path, name):
    made = package(tmp_path, **{f"{name}.py": "", "kernel/bad.py": f"from equidp.{name} import x\n"})
    assert seen(trusted(made), made.root) == {"kernel/bad.py:1"}
    assert seen(upward(made), made.root) == set()


def test_the_ledger_may_import_the_kernel_and_the_ground_alone(tmp_path):
    made = package(
        tmp_path, **{"ledger/bad.py": "from equidp._files import x\nfrom equidp.models import y\n"}
    )
    made = package(tmp_path, **{"models.py": "", "distributed/bad.py": "from equidp.ledger.file import z\n"})
    assert seen(trusted(made), made.root) == {"ledger/bad.py:2", "distributed/bad.py:1"}


def test_young_parts_are_imported_by_files_of_their_own_folder_alone(tmp_path):
    text = "from equidp.policies.experimental.young import x\nfrom equidp.runs.experimental import y\n"
    made = package(
        tmp_path,
        **{
            "policies/experimental/young.py": "",
            "policies/experimental/other.py": text.partition("\n")[0] + "\n",
            "policies/methods.py": text.partition("\n")[0] + "\n",
            "policies/__init__.py": text.partition("\n")[0] + "\n",
            "runs/experimental/__init__.py": "from equidp.runs.experimental.part import y\n",
            "runs/experimental/part.py": "",
            "engines/bad.py": text,
        },
    )
    assert seen(experimental(made), made.root) == {"engines/bad.py:1", "engines/bad.py:2"}


@pytest.mark.parametrize(
    "text",
    [
        "x = torch._C.f\n",
        "y = torch.func._vmap.g()\n",
        "from torch._C import f\n",
        "from torch.func import _vmap\n",
        "import torch._functorch.vmap as v\n",
    ],
)
def test_private_names_of_torch_are_seen_in_the_kernel_alone(tmp_path, text):
    made = package(tmp_path, **{"kernel/bad.py": f"import torch\n{text}", "policies/dpsgd.py": text})
    assert seen(private_torch(made), made.root) == {"kernel/bad.py:2"}


def test_public_and_double_underscore_names_of_torch_are_not_private(tmp_path):
    text = "import torch\nx = torch.__version__\ny = torch.func.vmap\nself._torch = torch.nn\n"
    assert list(private_torch(package(tmp_path, **{"kernel/good.py": text}))) == []


@pytest.mark.soak
def test_every_benchmark_can_be_imported():
    names = sorted(path.stem for path in (_ROOT / "benchmarks").glob("*.py"))
    code = f"import sys; sys.path.insert(0, 'benchmarks'); [__import__(name) for name in {names}]"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    assert names
    assert done.returncode == 0, done.stderr
