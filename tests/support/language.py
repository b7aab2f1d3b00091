"""Checks names and docstrings of a package: the rules of language that a program can judge.

    python tests/support/language.py [FOLDER ...]    # default: src/equidp and papers

Prints one line for each offence, as file:line: what is wrong, and exits with 1 if there is any.

- A docstring starts with a noun of the field or a verb: not with a word of `QUESTIONS`. So does
  the docstring of a constant, field or option. The verb of a
  function is an imperative ("Return"): none of `THIRD_PERSON`.
- Sentences for people are written in `report/` and `cli/`: no function elsewhere is named `*_in_words`.
- Source, docs, README and CONTRIBUTING use words of the glossary: none of `BANNED`.
- A function is named by a verb and its object, or by a noun with its object: not by a participle alone, such
  as `kept` or `_measured`. Properties are attributes to those who use them, and may be (`closed`).
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

QUESTIONS = frozenset({"What", "Whether", "Who", "Whose", "How", "Of", "As", "Those"})
THIRD_PERSON = frozenset(
    {
        "Adds",
        "Allows",
        "Computes",
        "Gives",
        "Keeps",
        "Makes",
        "Moves",
        "Prints",
        "Puts",
        "Raises",
        "Reads",
        "Refuses",
        "Restores",
        "Returns",
        "Saves",
        "Sets",
        "Takes",
        "Trains",
        "Tries",
        "Warns",
        "Writes",
        "Yields",
    }
)
IRREGULAR = frozenset(
    {
        "begun",
        "bought",
        "brought",
        "built",
        "chosen",
        "done",
        "drawn",
        "fed",
        "felt",
        "found",
        "given",
        "gone",
        "got",
        "grown",
        "heard",
        "held",
        "hidden",
        "kept",
        "known",
        "led",
        "left",
        "lost",
        "made",
        "meant",
        "met",
        "paid",
        "said",
        "seen",
        "sent",
        "shown",
        "sold",
        "spent",
        "stood",
        "taken",
        "thought",
        "told",
        "understood",
        "won",
        "written",
    }
)
NO_PARTICIPLES = frozenset({"embed", "feed", "need", "seed", "speed"})
PUBLIC = frozenset(
    {"decoded", "filled", "penalised", "released", "remembered", "saved", "spent", "taken", "wrapped"}
)
"""Names that users call or implement, which stay until a release renames them."""
BANNED = {
    r"undecided": "inconclusive",
    r"(?:holds|fails|undecided|says nothing) under": "within, or exceeds, tolerance under",
    r"[\"']says nothing[\"']": "uninformative",
    r"may[- ]leave(?! out)": "shareable",
    r"the house": "name who or what it is",
    r"(?:--|\.)tau|tau=": "gap_tolerance",
    r"--reference|reference=|(?:non-private|the) reference without privacy": "baseline",
    r"(?:group|example) that pays most": "with the largest epsilon, or the largest loss",
    r"worst[- ]off|hit hardest|hardest hit": "with the largest loss, or worst",
    r"kept (?:run|result)s?": "stored",
    r"anew": "again",
    r"pictures?": "plot",
    r"told": "an active verb: reads, gets, reveals, is distinguished",
    r"settled": "resolved, or exact",
    r"(?:is|are|gives|that|has) no numbers?": "is not a number",
    r"(?:constant|right|wrong) answers?|always answering": "prediction",
    r"mend(?:s|ed|ing)?": "correct",
    r"(?:exact|same|released|measured) figures?": "metrics, results, or values; a figure is a plot",
    r"figures of (?:(?:a )?few|(?:the )?(?:test|training))": "metrics, results, or values",
    r"prices?": "cost, or epsilon",
    r"(?:is|are) right": "correct",
    r"processors?": "CPU",
    r"cut (?:between|at the base)|base_rate_cut|cut=": "decision, or threshold",
}
"""Words that the glossary replaced -> what to write. Each is matched as a whole, in any case."""


class Offence(NamedTuple):
    """A broken rule and its place."""

    file: Path
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def find_offences(root: Path) -> Iterator[Offence]:
    """Yield all offences of the modules below a folder, file by file."""
    for file in sorted(root.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        yield from find_questions(file, tree)
        yield from find_participles(file, tree)
        yield from find_sentences(file, tree)


def find_questions(file: Path, tree: ast.Module) -> Iterator[Offence]:
    """Yield the docstrings that start with a word of `QUESTIONS` or `THIRD_PERSON`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            first = next(iter(str(node.value.value).split()), "")
            if first.rstrip(",:.") in QUESTIONS:
                message = f"docstring starts with {first!r}; start with a noun or a verb"
                yield Offence(file, node.lineno, message)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = next(iter((ast.get_docstring(node) or "").split()), "")
            if first in THIRD_PERSON:
                yield Offence(
                    file, node.body[0].lineno, f"docstring starts with {first!r}; write the imperative"
                )


def find_participles(file: Path, tree: ast.Module) -> Iterator[Offence]:
    """Yield the functions whose whole name is a participle."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
            name = node.name.strip("_")
            regular = re.fullmatch(r"[a-z]+ed", name) and name not in NO_PARTICIPLES
            if (regular or name in IRREGULAR) and node.name not in PUBLIC:
                yield Offence(file, node.lineno, f"function {node.name!r}; name it by a verb and its object")


def find_sentences(file: Path, tree: ast.Module) -> Iterator[Offence]:
    """Yield the functions below `report/` whose name says that they write sentences."""
    if {"report", "cli", "papers"} & set(file.parts):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name.endswith("in_words"):
            yield Offence(file, node.lineno, f"function {node.name!r}; write its sentences in report/")


def find_banned_words(files: Iterable[Path]) -> Iterator[Offence]:
    """Yield the words of `BANNED` in texts, line by line."""
    banned = {re.compile(rf"(?<![\w-]){word}(?![\w-])", re.IGNORECASE): new for word, new in BANNED.items()}
    for file in files:
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            for pattern, new in banned.items():
                for found in pattern.finditer(line):
                    yield Offence(file, number, f"{found[0]!r}; the glossary has another word: {new}")


def list_texts(root: Path) -> list[Path]:
    """Files whose words are checked: source, templates and pages; the changelog lists old words."""
    pages = [*root.glob("docs/*.md"), root / "README.md", root / "CONTRIBUTING.md"]
    source = root / "src" / "equidp"
    return sorted([*source.rglob("*.py"), *source.rglob("*.html"), *pages])


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    names = {ast.unparse(each).split(".")[-1] for each in node.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def main() -> int:
    """Check the folders that are named on the command line, or the package and papers."""
    here = Path(__file__).parents[2]
    roots = [Path(each) for each in sys.argv[1:]] or [here / "src" / "equidp", here / "papers"]
    found = [each for root in roots for each in find_offences(root)]
    found += [] if sys.argv[1:] else find_banned_words(list_texts(here))
    for offence in found:
        print(offence)
    print(f"{len(found)} offences", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
