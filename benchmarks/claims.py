"""Claims: the figures of README and docs, each with the command that gives it, in benchmarks/claims.toml.

    python benchmarks/claims.py --list               # claims, when they were measured, and what each costs
    python benchmarks/claims.py --check              # pages and stored results; then runs the quick commands
    python benchmarks/claims.py --check NAME ...     # runs these commands, quick or not
    python benchmarks/claims.py --rewrite NAME ...   # measures again, and rewrites the file and the pages

Commands that need real data read it from EQUIDP_DATA. A measurement that was stopped goes on from its
finished runs; these are deleted when a claim is measured. `--check` ends with exit code 1 where a figure
differs.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib
import json
import math
import os
import re
import resource
import shlex
import shutil
import string
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILE = Path("benchmarks") / "claims.toml"
"""File of claims, below the root of a checkout."""
QUICK_SECONDS = 90.0
"""CPU seconds up to which `make soak` runs a command."""
KINDS = ("accuracy", "exact", "timing")
"""Kinds of claims: means over seeds; figures that come out the same each time; times and memory."""
_WIDENING = 3.0
"""Tolerance as a multiple of the standard error over seeds, most of which comes from splits.

They are the same in another measurement, and `equidp compare` repeats its noise as well: measured twice,
means of `equidp train` on Adult were 0.26 standard errors apart (DP-SGD) and 0.07 (DPSGD-F)."""
_ROUGHLY = 0.5
"""Tolerance of times and memory, as a share of them: CPUs differ."""
_NUMBER = r"[-+]?(?:\d+(?:,\d{3})*(?:\.\d+)?|\.\d+)"
_HEADER = """\
# Figures of README and docs, with the commands that give them; written by benchmarks/claims.py.
# A command without a date in `measured` was not run with this version: its figures are of an earlier one.
"""


class Number(float):
    """Number of a page; the form "~.2f" leaves out a zero before the point."""

    def __format__(self, form: str) -> str:
        text = format(float(self), form.removeprefix("~"))
        return re.sub(r"\b0\.", ".", text) if form.startswith("~") else text


@dataclass(frozen=True)
class Figure:
    """One number of a claim.

    Attributes:
        read: where it stands in the output: see `read_values`; several values are averaged.
        minus: what is subtracted from these values, one by one; "": nothing.
        scale: factor from the output to the page.
        value: number, as it was measured last.
        error: standard error of its mean over seeds.
        tolerance: how far another measurement may be from `value`.
    """

    read: str
    minus: str = ""
    scale: float = 1.0
    value: float = 0.0
    error: float = 0.0
    tolerance: float = 0.0

    def __format__(self, form: str) -> str:
        return format(Number(self.value), form)

    @property
    def standard_error(self) -> Number:
        """Standard error, for a page."""
        return Number(self.error)

    def measured(self, outputs: Sequence[str], kind: str) -> Figure:
        """This figure with the value, error and tolerance that outputs of a command give."""
        values = [value for text in outputs for value in read_values(self.read, text)]
        if self.minus:
            less = [value for text in outputs for value in read_values(self.minus, text)]
            values = [value - other for value, other in zip(values, less, strict=True)]
        if not values:
            raise ClaimError(f"nothing in the output is {self.read!r}.")
        scaled = [self.scale * value for value in values]
        mean, error = fmean(scaled), stdev(scaled) / math.sqrt(len(scaled)) if len(scaled) > 1 else 0.0
        tolerances = {"accuracy": _WIDENING * error, "exact": 0.0, "timing": _ROUGHLY * abs(mean)}
        rounded = (float(f"{each:.6g}") for each in (mean, error, tolerances[kind]))
        return replace(self, **dict(zip(("value", "error", "tolerance"), rounded, strict=True)))


@dataclass(frozen=True)
class Place:
    """A text of a page with figures in it.

    Attributes:
        page: below the root.
        text: of the page, with `{name:.1f}` for figures, `{name.standard_error:.1f}` for their standard
            errors and `{seeds}` for the number of seeds; lines may break anywhere.
    """

    page: str
    text: str


@dataclass(frozen=True)
class Claim:
    """Figures that one command gives, and where they are stated.

    Attributes:
        name: of the claim.
        kind: one of `KINDS`.
        command: as a page has it; it is run once for each seed where it has `{seed}`.
        adds: options that the command is run with beside, such as files for its output.
        then: further commands, run after it in the same folder.
        output: file that figures are read from; "": what was printed.
        file: kept file that figures are read from in place of running the command.
        seeds: of the runs; none where nothing is random.
        places: where the figures are stated.
        seconds: CPU seconds of all commands.
        measured: date; "": not with this version.
        note: what a reader of the file should know.
        figures: by name.
    """

    name: str
    kind: str = "accuracy"
    command: str = ""
    adds: str = ""
    then: tuple[str, ...] = ()
    output: str = ""
    file: str = ""
    seeds: tuple[int, ...] = ()
    seconds: float = 0.0
    measured: str = ""
    note: str = ""
    places: tuple[Place, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """True where its command has to be run to know its figures."""
        return bool(self.command) and not self.file

    @property
    def quick(self) -> bool:
        """True where `make soak` runs its command."""
        return self.runs and bool(self.measured) and self.kind != "timing" and self.seconds <= QUICK_SECONDS

    @property
    def words(self) -> dict[str, Any]:
        """Values of the fields of its texts."""
        return {**self.figures, "seeds": len(self.seeds)}


@dataclass(frozen=True)
class Exemption:
    """Numbers of a page that claim nothing.

    Attributes:
        pattern: regular expression of a text with the numbers.
        why: reason.
    """

    pattern: str
    why: str


@dataclass(frozen=True)
class Claims:
    """All claims, and the numbers that claim nothing."""

    claims: tuple[Claim, ...] = ()
    exemptions: tuple[Exemption, ...] = ()

    @classmethod
    def load(cls, root: Path = ROOT) -> Claims:
        """Read the file of claims of a checkout."""
        content = tomllib.loads((root / FILE).read_text(encoding="utf-8"))
        exempt = tuple(Exemption(**each) for each in content.pop("exempt", []))
        return cls(tuple(_claim(name, each) for name, each in content.items()), exempt)

    def save(self, root: Path = ROOT) -> None:
        """Write the file of claims."""
        (root / FILE).write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """The file of claims."""
        parts = [_HEADER, "exempt = " + _listed(_inline(asdict(each)) for each in self.exemptions)]
        for claim in self.claims:
            own = {each.name: getattr(claim, each.name) for each in fields(Claim)}
            del own["name"], own["figures"]
            own["places"] = [asdict(place) for place in claim.places]
            lines = [
                f"{name} = {_toml(value)}" for name, value in own.items() if value not in ("", (), [], 0.0)
            ]
            figures = [f"{name} = {_inline(_changed(figure))}" for name, figure in claim.figures.items()]
            parts += ["\n".join([f"[{claim.name}]", *lines, f"\n[{claim.name}.figures]", *figures])]
        return "\n\n".join(part.strip() for part in parts) + "\n"

    def named(self, names: Sequence[str]) -> list[Claim]:
        """Claims of these names; of none, all."""
        by_name = {claim.name: claim for claim in self.claims}
        if unknown := [name for name in names if name not in by_name]:
            raise ClaimError(f"no claim is {', '.join(unknown)}; expected some of {', '.join(by_name)}.")
        return [by_name[name] for name in names or by_name]

    def with_claim(self, changed: Claim) -> Claims:
        """These claims with another one of the same name."""
        return replace(
            self, claims=tuple(changed if each.name == changed.name else each for each in self.claims)
        )


class ClaimError(Exception):
    """A claim cannot be checked: a command fails, or an output or a page lacks what it should have."""


def _claim(name: str, content: dict[str, Any]) -> Claim:
    if content["kind"] not in KINDS:
        raise ClaimError(f"{name} is of kind {content['kind']!r}; expected one of {', '.join(KINDS)}.")
    made = {
        "places": tuple(Place(**each) for each in content.get("places", ())),
        "figures": {key: Figure(**each) for key, each in content["figures"].items()},
        **{key: tuple(content.get(key, ())) for key in ("seeds", "then")},
    }
    return Claim(name, **{**content, **made})


def _changed(figure: Figure) -> dict[str, Any]:
    kept = ("read", "value")
    every = ((each.name, getattr(figure, each.name), each.default) for each in fields(figure))
    return {name: value for name, value, default in every if name in kept or value != default}


def _toml(value: Any) -> str:
    if isinstance(value, list) and isinstance(value[0], dict):
        return _listed(_inline(each) for each in value)
    return json.dumps(value, ensure_ascii=False)


def _listed(items: Iterable[str]) -> str:
    return "".join(["[\n", *(f"    {item},\n" for item in items), "]"])


def _inline(content: Mapping[str, Any]) -> str:
    return "{" + ", ".join(f"{name} = {_toml(value)}" for name, value in content.items()) + "}"


# Outputs


def read_values(read: str, text: str) -> list[float]:
    """Return the numbers of an output that a text names.

    Args:
        read: the way and the place. "json results[method=dpsgd, group=all].accuracy": of records of a JSON
            file; "cell HEADING | ROW | 2": the second number column of a Markdown table; "match PATTERN": the
            group of a regular expression; "count PATTERN": how often it is found; "code MODULE:NAME": a
            default in the code.
        text: the output.
    """
    way, _, place = read.partition(" ")
    if way == "json":
        return _json_values(place, json.loads(text))
    if way == "cell":
        return [_cell(text, *(part.strip() for part in place.split(" | ")))]
    found = [] if way == "code" else re.findall(place, text, re.MULTILINE)
    if way == "match":
        return [float(number.replace(",", "")) for number in found]
    if way == "count":
        return [float(len(found))]
    if way == "code":
        module, _, name = place.partition(":")
        return [float(reduce(getattr, name.split("."), importlib.import_module(module)))]
    raise ClaimError(f"{read!r}; expected json, cell, match, count or code, and a place.")


def _json_values(place: str, content: Any) -> list[float]:
    found = [content]
    for name, wanted in re.findall(r"([^.\[\]]*)(?:\[([^\]]*)\])?\.?", place):
        found = [each[name] for each in found] if name else found
        if wanted:
            pairs = dict(pair.strip().split("=") for pair in wanted.split(","))
            found = [
                record
                for records in found
                for record in records
                if all(str(record[key]) == value for key, value in pairs.items())
            ]
    return [float(each) for each in found]


def _cell(text: str, heading: str, row: str, column: str) -> float:
    """Number of a table: below a heading that begins so, in the row of a label, in the column of a number."""
    _, found, rest = text.partition(f"# {heading}")
    for line in rest.splitlines() if found else ():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if cells[0] == row and len(cells) > int(column):
            return float(re.search(_NUMBER, cells[int(column)])[0].replace(",", ""))
    raise ClaimError(f"no table below {heading!r} has a row {row!r} with {column} columns.")


# Measuring


def measure(claim: Claim, root: Path, folder: Path) -> Claim:
    """Measure a claim; finished runs that the folder keeps are taken over, and deleted at the end.

    Raises:
        ClaimError: a command fails, or its output lacks a figure.
    """
    if not claim.runs:
        text = (root / claim.file).read_text(encoding="utf-8") if claim.file else ""
        return _with_figures(claim, [text])
    from equidp.store import FIGURES

    key = f"{claim.command} {claim.adds} {claim.then} {claim.output} {claim.seeds} {FIGURES}"
    own = folder / f"{claim.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    several = "{seed}" in claim.command
    runs = [
        _run(claim, seed, root, own / f"seed-{seed}" if several else own)
        for seed in (claim.seeds if several else claim.seeds[:1] or (0,))
    ]
    found = _with_figures(claim, [run["output"] for run in runs])
    shutil.rmtree(own)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return replace(found, seconds=round(sum(run["seconds"] for run in runs), 1), measured=today)


def _with_figures(claim: Claim, outputs: Sequence[str]) -> Claim:
    figures = {name: figure.measured(outputs, claim.kind) for name, figure in claim.figures.items()}
    return replace(claim, figures=figures)


def _run(claim: Claim, seed: int, root: Path, folder: Path) -> dict[str, Any]:
    """Output and CPU seconds of the commands with one seed, unless they are kept in the folder."""
    kept = folder / "outcome.json"
    if kept.exists():
        outcome: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return outcome
    folder.mkdir(parents=True, exist_ok=True)
    for part in folder.glob("run*"):  # of a training that was stopped, which --out does not take again
        shutil.rmtree(part)
    before, printed = _cpu_seconds(), ""
    for typed in (f"{claim.command} {claim.adds}", *claim.then):
        printed += _printed(typed.replace("{seed}", str(seed)), root, folder)
    output = (folder / claim.output).read_text(encoding="utf-8") if claim.output else printed
    outcome = {"output": output, "seconds": _cpu_seconds() - before}
    part = kept.with_suffix(".part")
    part.write_text(json.dumps(outcome), encoding="utf-8")
    part.replace(kept)
    return outcome


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _printed(typed: str, root: Path, folder: Path) -> str:
    words = [word for word in shlex.split(typed) if not word.startswith("EQUIDP_DATA=")]
    program = {"equidp": [sys.executable, "-m", "equidp"], "python": [sys.executable]}[words[0]]
    scripts = [str(root / word) if (root / word).is_file() else word for word in words[1:]]
    paths = [str(root / "src"), str(root)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "COLUMNS": "200",
    }
    done = subprocess.run(
        [*program, *scripts], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ClaimError(f"{typed} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


# Pages


def template(text: str) -> re.Pattern[str]:
    """Pattern of a text of a page, with a group for the number of each field; lines may break at spaces."""
    parts = []
    for literal, name, _, _ in string.Formatter().parse(text):
        words = [re.escape(word) for word in re.split(r"\s+", literal)]
        parts.append(r"\s+".join(words))
        if name is not None:
            parts.append(f"({_NUMBER})")
    return re.compile("".join(parts))


def stated_numbers(claim: Claim, place: Place, page: str) -> re.Match[str]:
    """Where a page states the figures of a claim.

    Raises:
        ClaimError: the page has the text not at all, or more than once.
    """
    found = list(template(place.text).finditer(page))
    if len(found) != 1:
        raise ClaimError(f"{claim.name}: {place.page} has {len(found)} times, not once: {place.text}")
    return found[0]


def expected_numbers(claim: Claim, place: Place) -> list[str]:
    """Numbers that a page must have, in the order of its text."""
    every = string.Formatter().parse(place.text)
    return [f"{{{name}:{form}}}".format(**claim.words) for _, name, form, _ in every if name is not None]


def differences(claim: Claim, root: Path) -> Iterator[str]:
    """Sentences on figures that a page, or a kept file, has and the claim has not; none: all agree."""
    for place in claim.places:
        page = (root / place.page).read_text(encoding="utf-8")
        try:
            stated = stated_numbers(claim, place, page).groups()
        except ClaimError as error:
            yield str(error)
            continue
        expected = expected_numbers(claim, place)
        if list(stated) != expected:
            yield (
                f"{claim.name}: {place.page} says {', '.join(stated)}, {FILE} {', '.join(expected)}: "
                f"{place.text}"
            )
    if not claim.runs:
        yield from moved_figures(claim, measure(claim, root, root))


def moved_figures(claim: Claim, now: Claim) -> Iterator[str]:
    """Sentences on figures that are further from the claim than its tolerance."""
    for name, figure in claim.figures.items():
        found = now.figures[name]
        allowed = figure.tolerance if claim.measured else max(figure.tolerance, found.tolerance)
        if not abs(found.value - figure.value) <= allowed + 1e-5 * abs(figure.value):
            yield f"{claim.name}: {name} is {found.value:g}, not {figure.value:g} (tolerance {allowed:g})"


def rewritten(claim: Claim, root: Path) -> None:
    """Write the figures of a claim into its pages."""
    for place in claim.places:
        path = root / place.page
        page = path.read_text(encoding="utf-8")
        found = stated_numbers(claim, place, page)
        numbers = list(enumerate(expected_numbers(claim, place), start=1))
        for group, number in reversed(numbers):
            page = page[: found.start(group)] + number + page[found.end(group) :]
        path.write_text(page, encoding="utf-8")


_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|thirty|hundreds?|thousands?|millions?|"
    "half|quarter|third|twice|double"
)
_ANY_NUMBER = re.compile(rf"(?<![\w.])(?:\d+(?:,\d{{3}})*(?:\.\d+)*|\.\d+|(?:{_WORDS})\b)", re.IGNORECASE)
_QUOTED = re.compile(r"^```.*?^```|`[^`\n]*(?:\n[^`\n]*)?`|(?<=\])\([^)]*\)", re.DOTALL | re.MULTILINE)
"""Blocks of code, code in lines, and targets of links."""


def unsupported_numbers(page: str, claims: Claims, root: Path = ROOT) -> list[str]:
    """Numbers of a page that no claim, code or exemption covers, each with its line.

    Numbers in the text of a claim, beside its figures, are covered where the command has them.
    """
    text = (root / page).read_text(encoding="utf-8")
    covered = [found.span() for found in _QUOTED.finditer(text)]
    for each in claims.exemptions:
        covered += [found.span() for found in re.finditer(each.pattern, text)]
    for claim in claims.claims:
        in_command = set(re.findall(_NUMBER, f"{claim.command} {claim.adds} {' '.join(claim.then)}"))
        for place in claim.places:
            if place.page == page:
                for found in template(place.text).finditer(text):
                    covered += found.regs[1:]
                    covered += [
                        (found.start() + number.start(), found.start() + number.end())
                        for number in _ANY_NUMBER.finditer(found[0])
                        if number[0] in in_command
                    ]
    return [
        f"{page}:{text.count(chr(10), 0, found.start()) + 1}: {found[0]}"
        for found in _ANY_NUMBER.finditer(text)
        if not any(start <= found.start() and found.end() <= end for start, end in covered)
    ]


# Commands


def list_claims(claims: Iterable[Claim]) -> None:
    """Print each claim with what it costs."""
    for claim in claims:
        if not claim.command:
            cost = "read from the code or a file"
        elif claim.file:
            cost = f"read from {claim.file}"
        else:
            seconds = f"{claim.seconds:.0f} s" if claim.seconds else "cost not known"
            when = f"measured {claim.measured}" if claim.measured else "not measured with this version"
            cost = f"{seconds}, {when}{', quick' if claim.quick else ''}"
        print(f"{claim.name}: {cost}")
        if claim.command:
            print(f"    {claim.command} {claim.adds}".rstrip())


def check(claims: Claims, names: Sequence[str], root: Path, folder: Path) -> list[str]:
    """Return sentences on wrong figures: in pages, and by these commands, or else by the quick ones."""
    wrong = [sentence for claim in claims.claims for sentence in differences(claim, root)]
    for claim in claims.named(names):
        if claim.runs and (names or claim.quick):
            now = measure(claim, root, folder)
            _print_figures(now)
            wrong += moved_figures(claim, now)
    return wrong


def rewrite(claims: Claims, names: Sequence[str], root: Path, folder: Path) -> None:
    """Measure claims of these names, or all, and write the file and the pages after each."""
    chosen = claims.named(names)
    for claim in chosen:
        for place in claim.places:  # before anything is measured
            stated_numbers(claim, place, (root / place.page).read_text(encoding="utf-8"))
    for claim in chosen:
        now = measure(claim, root, folder)
        claims = claims.with_claim(now)
        claims.save(root)
        rewritten(now, root)
        _print_figures(now)


def _print_figures(claim: Claim) -> None:
    shown = (
        f"{name} {each.value:g} (standard error {each.error:.2g})" for name, each in claim.figures.items()
    )
    print(f"{claim.name}, {claim.seconds:.0f} s: {', '.join(shown)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="claims; default: all, or the quick ones")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--list", action="store_true", help="print claims with their costs")
    action.add_argument("--check", action="store_true", help="compare figures with the file of claims")
    action.add_argument("--rewrite", action="store_true", help="measure, and rewrite the file and the pages")
    parser.add_argument(
        "--folder", type=Path, default=Path("equidp-runs") / "claims", help="for runs that are not finished"
    )
    given = parser.parse_args()
    try:
        claims = Claims.load()
        if given.list:
            list_claims(claims.named(given.names))
        elif given.check:
            wrong = check(claims, given.names, ROOT, given.folder.absolute() / "check")
            sys.exit("\n".join(wrong) or None)
        else:
            rewrite(claims, given.names, ROOT, given.folder.absolute() / "rewrite")
    except ClaimError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
