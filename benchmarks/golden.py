"""Does this checkout give the golden results of another one, to the last bit?

    python benchmarks/golden.py --against 069d3a7c
    python benchmarks/golden.py --against ../before --sections trajectories,plans --only "digits dpsgd"
    python benchmarks/golden.py --keep

The first makes the results of both (a worktree is made for a commit), each by the cases in its own
tests/golden, or by those of this checkout where it has none, and compares all of them. Adult's cases need
EQUIDP_DATA. A checkout with a `.venv` runs by that; the other one by this Python. The last rewrites
tests/golden/values.json, which tests hold on any processor: no commit does that but for a deleted feature, or
for a change that the changelog explains.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
VALUES = HERE / "tests" / "golden" / "values.json"
Results = dict[str, dict[str, Any]]


@contextmanager
def checkout(name: str) -> Iterator[Path]:
    """The folder itself, or a worktree of the commit, which is removed at the end."""
    if Path(name).is_dir():
        yield Path(name).resolve()
        return
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "checkout")
        subprocess.run(["git", "worktree", "add", "--detach", str(place), name], cwd=HERE, check=True)
        try:
            yield place
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(place)], cwd=HERE, check=True)


def start(tree: Path, out: Path, chosen: list[str]) -> subprocess.Popen[bytes]:
    """Begin making the results of a checkout, in a process and with a cache of its own."""
    cases = tree if (tree / "tests/golden/cases.py").exists() else HERE
    own = tree / ".venv" / "bin" / "python"
    found = [str(tree / "src"), str(cases), str(cases / "tests")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(found), "OMP_NUM_THREADS": "1"}
    environment["EQUIDP_CACHE"] = str(out.parent / f"{out.stem}-cache")
    command = [str(own if own.exists() else sys.executable), str(cases / "tests/golden/cases.py"), str(out)]
    return subprocess.Popen([*command, *chosen], cwd=tree, env=environment)


def differences(before: Results, after: Results) -> list[str]:
    """Names of the cases that one side lacks or that differ, each with what differs."""
    found = []
    for section in dict.fromkeys((*before, *after)):
        old, new = before.get(section, {}), after.get(section, {})
        for name in dict.fromkeys((*old, *new)):
            if name not in old or name not in new:
                found.append(f"{section}: {name}: only {'before' if name in old else 'after'}")
            else:
                parts = [part for part in old[name] if old[name][part] != new[name][part]]
                found += [f"{section}: {name}: {part}" for part in parts]
    return found


def written(results: Results) -> str:
    """JSON of what any processor keeps, a line for each case."""
    sections = []
    for section, cases in sorted(results.items()):
        kept = {name: {"exact": found["exact"], "close": found["close"]} for name, found in cases.items()}
        lines = [f"{json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(kept.items())]
        sections.append(f"{json.dumps(section)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(sections) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", help="folder of a checkout, or a commit")
    parser.add_argument("--sections", default="", help="some of them, with commas")
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--keep", action="store_true", help=f"rewrite {VALUES.name}")
    given = parser.parse_args()
    chosen = [*filter(None, given.sections.split(",")), *([given.only] if given.only else [])]
    with tempfile.TemporaryDirectory() as folder:
        after = Path(folder, "after.json")
        if given.keep:
            if start(HERE, after, []).wait():
                sys.exit("the cases could not be made")
            VALUES.write_text(written(json.loads(after.read_text())), encoding="utf-8")
            return
        if not given.against:
            parser.error("give --against CHECKOUT, or --keep")
        before = Path(folder, "before.json")
        with checkout(given.against) as tree:
            sides = [start(tree, before, chosen), start(HERE, after, chosen)]
            if sum(abs(side.wait()) for side in sides):
                sys.exit("the cases could not be made")
        results = json.loads(before.read_text()), json.loads(after.read_text())
    wrong = differences(*results)
    made = Counter({section: len(cases) for section, cases in results[1].items()})
    print("\n".join(wrong))
    print(f"{sum(made.values())} cases ({', '.join(f'{n} {name}' for name, n in made.items())}); ", end="")
    print(f"{len(wrong)} differ" if wrong else "all are equal to the last bit")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
