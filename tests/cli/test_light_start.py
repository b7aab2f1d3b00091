"""Commands load what they need: help, version and completion never load torch."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from equidp.cli import noise
from equidp.cli.app import COMMANDS, app
from equidp.kernel.epsilon import ACCOUNTANTS

HEAVY = ("torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "dp_accounting")
COMPILER = ("torch._dynamo", "torch._inductor", "sympy")
"""The compiler of torch, and what it needs: they take longer to load than the rest of torch."""


def loaded(code: str, modules: tuple[str, ...] = HEAVY + COMPILER) -> tuple[str, list[str]]:
    """What a fresh process prints, and which of these modules it has loaded at its end."""
    program = f"""
import sys
def end():
    print([name for name in {modules} if name in sys.modules], file=sys.stderr)
import atexit
atexit.register(end)
{code}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return done.stdout, eval(done.stderr.splitlines()[-1])


@pytest.mark.soak
@pytest.mark.parametrize("arguments", [["--help"], ["compare", "--methods", "sgd,dpsgdd"]])
def test_nothing_heavy_is_loaded(arguments):
    code = f"import sys; sys.argv = ['equidp', *{arguments}]; from equidp.cli import main; main()"
    out, heavy = loaded(code)
    assert heavy == []
    if arguments == ["--help"]:
        assert all(f"│ {name} " in out for name in COMMANDS)


def test_accountants_are_named_without_loading_them():
    assert tuple(ACCOUNTANTS) == noise.ACCOUNTANTS


@pytest.mark.soak
def test_accounting_for_a_method_of_equidp_loads_no_torch():
    """Noise of one full batch, which is worked out in no time."""
    plan = ["--examples", "100", "--batch-size", "100", "--steps", "1"]
    typed = ["equidp", "account", *plan, "--method", "quantile", "--epsilon", "1"]
    code = f"import sys; sys.argv = {typed}; from equidp.cli import main; main()"
    out, heavy = loaded(code)
    assert "1 steps, each" in out
    assert set(heavy) == {"numpy", "scipy", "dp_accounting"}


def test_importing_equidp_loads_nothing_heavy():
    assert loaded("import equidp; dir(equidp)") == ("", [])


@pytest.mark.soak
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["eva"], {"evaluate"}),
        (["train", "--method", "dps"], {"dpsgd", "dpsgd-f", "dpsgd-f-code"}),
        (["compare", "--meth"], {"--methods"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_completion_offers_commands_options_and_values_without_python(words, offered, tmp_path):
    script = tmp_path / "equidp.bash"
    script.write_text(app.generate_completion(shell="bash"))
    line = ["equidp", *words]
    program = f"""
source {script}
COMP_WORDS=({" ".join(line)}) COMP_CWORD={len(words)}
cur={words[-1]} PATH=/nowhere _equidp
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert set(done.stdout.split()) == offered, done.stderr
