"""Result of an item: kept as a small file, and compared with the paper."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import pandas as pd
import torch
from scipy import stats

from equidp import DataError
from equidp.extend import versions, write_whole
from papers.reproduction.item import KEY, Claim, Found, Item, Printed, Verdict

_DIGITS = 6
"""Significant digits of kept figures."""
CLOSE = 0.005
"""Figures of one seed have no standard error: up to half a point of accuracy counts as no difference."""
ERRORS = 2
"""Standard errors from which on a figure differs."""


@final
@dataclass(frozen=True, eq=False)
class Result:
    """Figures of an item, and how they were made.

    Attributes:
        item: its name.
        command: that makes it again.
        commit: of the code, or the version of the package.
        seeds: of the runs; of some data fewer, where that was asked or time was short.
        hours: that all runs took, one after the other on one core.
        made_with: versions of the packages that figures depend on, and the device if not the CPU.
        found: means over seeds.
    """

    item: str
    command: str
    commit: str
    seeds: tuple[int, ...]
    hours: float
    made_with: Mapping[str, str]
    found: Found

    @classmethod
    def of(
        cls,
        item: Item,
        rows: pd.DataFrame,
        seeds: tuple[int, ...],
        seconds: float,
        *,
        seeds_of: Mapping[str, int] | None = None,
        device: str = "cpu",
    ) -> Result:
        """Result from rows by seed, made by the current code, without curves that the item does not show."""
        options = f" --seeds {len(seeds)}" if len(seeds) != item.seeds else ""
        if seeds_of:
            options += f" --seeds-of {','.join(f'{data}={count}' for data, count in seeds_of.items())}"
        made_with = versions()
        if device != "cpu":
            options += f" --device {device}"
            made_with["device"] = name_device(device)
        command = f"python -m papers reproduce {item.name}{options}"
        return cls(
            item.name,
            command,
            commit(),
            seeds,
            round(seconds / 3600, 3),
            made_with,
            Found.of(item.select_rows(rows)),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a small file, whole or not at all: a figure a line."""
        facts = {
            "item": self.item, "command": self.command, "commit": self.commit, "seeds": list(self.seeds),
            "hours": self.hours, "made_with": dict(self.made_with),
            "columns": [*KEY, "mean", "error", "seeds"],
        }  # fmt: skip
        lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in facts.items()]
        rows = (json.dumps([_plain(value) for value in row]) for row in self.found.table.to_numpy().tolist())
        lines.append(' "figures": [\n  ' + ",\n  ".join(rows) + "\n ]")
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, ("{\n" + ",\n".join(lines) + "\n}\n").encode())

    @property
    def seeds_in_words(self) -> str:
        """Number of seeds of the figures, "1 to 5 seeds" where not all were run."""
        return f"{self.seeds_counted} seed{'s' if len(self.seeds) > 1 else ''}"

    @property
    def hours_in_words(self) -> str:
        """Hours that all runs took, and on what."""
        device = f" ({self.made_with['device']})" if "device" in self.made_with else ""
        return f"{self.hours:.2g} hours of one core{device}"

    @property
    def seeds_counted(self) -> str:
        """Number of seeds as "5" or "1 to 5"."""
        most, fewest = len(self.seeds), int(self.found.table["seeds"].min())
        return f"{fewest} to {most}" if fewest < most else str(most)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read a file that `save` wrote.

        Raises:
            DataError: it is missing, damaged or of another kind.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            table = pd.DataFrame(content.pop("figures"), columns=content.pop("columns"))
            content.pop("quick", None)  # older files have it
            table = table.astype({"at": float, "mean": float, "error": float})
            return cls(**{**content, "seeds": tuple(content["seeds"])}, found=Found(table))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{os.fspath(path)!r} is not a stored result ({error}); remove it, or bring it back."
            ) from error


@final
@dataclass(frozen=True)
class Difference:
    """A figure beside the printed one.

    Attributes:
        printed: what the paper has.
        mean: what was found.
        low, high: 95% interval (Student) of found less printed; NaN of one seed.
        error: standard error of the mean; NaN of one seed.
    """

    printed: Printed
    mean: float
    low: float
    high: float
    error: float

    @property
    def value(self) -> float:
        """Reproduced value minus printed value."""
        return self.mean - self.printed.value

    @property
    def differs(self) -> bool:
        """True beyond two standard errors; of one seed, beyond half a point of accuracy."""
        scale = 1.0 if self.printed.quantity in ("accuracy", "change") else max(1.0, abs(self.printed.value))
        allowed = ERRORS * self.error if self.error > 0 else CLOSE * scale
        return abs(self.value) > allowed


@final
@dataclass(frozen=True)
class Judged:
    """An item with its result: differences from print, and which conclusions hold."""

    item: Item
    result: Result | None

    @cached_property
    def differences(self) -> list[Difference]:
        """One for each printed figure that was found."""
        return [] if self.result is None else [*filter(None, map(self._difference, self.item.printed))]

    def _difference(self, printed: Printed) -> Difference | None:
        assert self.result is not None
        names = {name: getattr(printed, name) for name in KEY}
        rows = self.result.found.where(**names)
        if len(rows) != 1:
            return None
        mean, error, seeds = rows[["mean", "error", "seeds"]].iloc[0]
        half = stats.t.ppf(0.975, seeds - 1) * error if seeds > 1 else math.nan
        away = mean - printed.value
        return Difference(printed, float(mean), away - half, away + half, float(error))

    @cached_property
    def claims(self) -> list[tuple[Claim, Verdict]]:
        """Each conclusion, and whether figures support it."""
        found = Found(pd.DataFrame(columns=[*KEY, "mean", "error", "seeds"]))
        if self.result is not None:
            found = self.result.found
        return [(claim, claim.judge(found)) for claim in self.item.claims]

    @property
    def not_run(self) -> list[str]:
        """Data of the item that the result has no figures of."""
        if self.result is None:
            return []
        labels = (getattr(study, "label", "") or study.data for study in self.item.studies)
        return [name for name in dict.fromkeys(labels) if name not in set(self.result.found.table["data"])]

    @property
    def state(self) -> str:
        """One of the keys of `page.WORDS`."""
        if self.result is None:
            return "not run"
        off = any(each.differs for each in self.differences)
        if off or any(verdict.holds is False for _, verdict in self.claims):
            return "differs"
        if not self.differences and all(verdict.holds is None for _, verdict in self.claims):
            return "measured"
        return "in part" if self.not_run else "reproduced"

    def why(self, difference: Difference) -> str:
        """Sentence on the reason why a figure differs; "" where none is known."""
        reasons = (each.text for each in self.item.reasons if each.covers(difference.printed))
        return next(reasons, "")

    @cached_property
    def reasons(self) -> list[str]:
        """Sentences on the differences there are, each once."""
        texts = (self.why(each) for each in self.differences if each.differs)
        broken = (claim.otherwise for claim, verdict in self.claims if verdict.holds is False)
        return list(dict.fromkeys(filter(None, (*texts, *broken))))

    @property
    def unexplained(self) -> list[Difference]:
        """Differences without a sentence."""
        return [each for each in self.differences if each.differs and not self.why(each)]


def name_device(name: str) -> str:
    """Return what the maker calls a device, such as "NVIDIA H200"; the name itself for other than CUDA."""
    return torch.cuda.get_device_name(name) if torch.device(name).type == "cuda" else name


def commit() -> str:
    """The commit of the code, with "+" where it was changed since; or the version of the package."""
    here = Path(__file__).parents[2]
    if not (here / ".git").exists():
        return f"equidp {versions()['equidp']}"
    read = _git(here, "rev-parse", "--short=10", "HEAD")
    changed = _git(here, "status", "--porcelain", "--", "src", "papers/*.py")
    return f"{read}{'+' if changed else ''}" if read else f"equidp {versions()['equidp']}"


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return ""
    return done.stdout.strip()


def _plain(value: Any) -> Any:
    """A value for JSON: numbers to a few digits, and null for what is not a number."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
