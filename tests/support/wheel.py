"""Builds the wheel and the source distribution, and checks what is in them; trains the README's example from
the wheel alone in a clean environment, then runs the demo with its extra.

    python tests/support/wheel.py

Needs setuptools in the environment that runs it (`make install` puts it there) and an index of packages for
the clean one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


DEMO = ("--settings", "published", "--report", "equidp-report.html")
"""Options of the demo, as in the Makefile."""
LARGEST = 2_000_000
"""Bytes that an archive may have beside weights, and that weights may have."""
WEIGHTS = ".npz"
SOURCES = (".py", ".pyi", "/py.typed", ".html", ".css", WEIGHTS)
METADATA = ("LICENSE", "METADATA", "WHEEL", "RECORD", "entry_points.txt", "top_level.txt")
BESIDE = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "SECURITY.md")
BESIDE += ("pyproject.toml", "setup.cfg")
"""Files beside the package in a source distribution."""
BUILD_SDIST = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = (sys.executable, "-m", "pip", "--quiet")
        run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT, cwd=folder)
        (wheel,) = folder.glob("equidp-*.whl")
        run(sys.executable, "-c", BUILD_SDIST, folder, cwd=ROOT)
        (archive,) = folder.glob("equidp-*.tar.gz")
        check_contents(wheel, archive)
        venv.create(folder / "clean", with_pip=True)
        python = folder / "clean" / "bin" / "python"
        run(python, "-m", "pip", "--quiet", "install", "-c", ROOT / "constraints.txt", wheel, cwd=folder)
        found = output(python, "-c", "import equidp; print(equidp.__file__)", cwd=folder)
        if not Path(found).is_relative_to(folder / "clean"):
            sys.exit(f"equidp comes from {found}, not from the wheel")
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        of_table, of_model = re.findall(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
        check_spent(output(python, "-c", of_model, cwd=folder))
        if "pandas" in output(python, "-m", "pip", "list", cwd=folder):
            sys.exit("the core brings pandas, which belongs to the extra tables")
        run(
            python,
            "-m",
            "pip",
            "--quiet",
            "install",
            "-c",
            ROOT / "constraints.txt",
            f"{wheel}[report]",
            cwd=folder,
        )
        check_spent(output(python, "-c", of_table, cwd=folder))
        run(folder / "clean" / "bin" / "equidp", "compare", *DEMO, cwd=folder)
        page = (folder / "equidp-report.html").read_text(encoding="utf-8")
        if "</html>" not in page:
            sys.exit("the demo's report is not complete")
        print(f"{wheel.name}: the core trained alone; with [report] the demo wrote {len(page):,} characters")


def check_spent(printed: str) -> None:
    """Exit unless an example of the README began by printing an epsilon of at most 4."""
    spent = float(printed.split()[0])
    if not 0 < spent <= 4:
        sys.exit(f"an example of the README spent epsilon {spent}; expected at most 4")


def check_contents(wheel: Path, archive: Path) -> None:
    """Exit where an archive is too large, lacks a file, or holds any that is no part of the package."""
    found = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in found if name.startswith("equidp/") and name.endswith(SOURCES)}
    others = {name for name in found - package if Path(name).name not in METADATA}
    with tarfile.open(archive) as opened:
        names = {each.name.partition("/")[2] for each in opened if each.isfile()}
    source = {name.removeprefix("src/") for name in names if name.startswith("src/equidp/")}
    others |= names - {f"src/{name}" for name in source} - set(BESIDE)
    others = {name for name in others if ".egg-info/" not in name}
    missing = ({"equidp/py.typed"} - package) | (package ^ source) | (set(BESIDE) - names)
    if not any(name.endswith("licenses/LICENSE") for name in found):
        missing.add("LICENSE of the wheel")
    if others or missing:
        sys.exit(f"in the archives: unexpected {sorted(others)}; missing or in one alone {sorted(missing)}")
    weights = sum(
        each.compress_size for each in zipfile.ZipFile(wheel).infolist() if each.filename.endswith(WEIGHTS)
    )
    sizes = {each.name: each.stat().st_size - weights for each in (wheel, archive)} | {"weights": weights}
    for name, size in sizes.items():
        if size > LARGEST:
            sys.exit(f"{name}: {size:,} bytes, weights apart; expected at most {LARGEST:,}")


def environment() -> dict[str, str]:
    """This environment without what would let the clean one see the source tree."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def run(*command: object, cwd: Path) -> None:
    subprocess.run([str(each) for each in command], cwd=cwd, env=environment(), check=True)


def output(*command: object, cwd: Path) -> str:
    found = subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        env=environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    return found.stdout.strip()


if __name__ == "__main__":
    main()
