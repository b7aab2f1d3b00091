"""Items: tables and figures of papers, the studies that make them again, and claims of the papers."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, final

import numpy as np
import pandas as pd

from equidp import SettingError
from equidp.comparison.cells import split_facts
from equidp.data import open_source
from equidp.digest import without_words
from equidp.extend import versions, write_whole
from equidp.store import FIGURES, Store, key_of
from papers.reproduction.plots import Plot

KEY = ["data", "method", "group", "quantity", "at"]
"""Names of a figure: `at` is an epoch, a share or the value of a swept setting, else NaN."""
COLUMNS = [*KEY, "seed", "value"]


@final
@dataclass(frozen=True)
class Paper:
    """A paper.

    Attributes:
        key: first part of the names of its items.
        cited: authors, venue and year.
        title: of the paper.
    """

    key: str
    cited: str
    title: str


XU = Paper("xu", "Xu, Du and Wu, KDD 2021", "Removing disparate impact on model accuracy in DP-SGD")
ESIPOVA = Paper(
    "esipova",
    "Esipova, Ghomi, Luo and Cresswell, ICLR 2023",
    "Disparate impact in differential privacy from gradient misalignment",
)
YU = Paper(
    "yu",
    "Yu, Kamath, Kulkarni, Liu, Yin and Zhang, TMLR 2023",
    "Individual privacy accounting for differentially private stochastic gradient descent",
)
BEYOND = Paper("beyond", "equidp", "Their conclusions at well-chosen settings")
PAPERS = (XU, ESIPOVA, YU, BEYOND)


@final
@dataclass(frozen=True)
class Request:
    """Request for the figures of a study.

    Attributes:
        seeds: one run of each kind for each.
        directory: where finished runs are kept.
        jobs: processes; None: one per core.
        device: name of the device to train on; studies that are not `Compared` train on the CPU.
    """

    seeds: tuple[int, ...]
    directory: Path
    jobs: int | None = None
    device: str = "cpu"

    def load_or_make(
        self,
        study: Any,
        seed: int,
        make: Callable[[int, Path], pd.DataFrame],
        code: tuple[ModuleType, ...] = (),
    ) -> tuple[pd.DataFrame, float]:
        """Table of a run and its seconds of CPU time, kept by data, settings and code.

        Args:
            study: a frozen dataclass that says all that the run depends on, but its data and seed.
            seed: of the run.
            make: trains it, given the seed and the path of a folder, where it may keep what it goes on from
                after a stop. The folder is deleted when the run is complete.
            code: modules beyond equidp's figures that it follows from.
        """
        store = Store(self.directory)
        store.check()
        examples = split_facts(open_source(study.data), seed).digest
        settings = {name: value for name, value in asdict(study).items() if name not in ("hours", "label")}
        sources = [without_words(Path(str(module.__file__)).read_text(encoding="utf-8")) for module in code]
        plain = json.loads(json.dumps(settings, default=str))
        key = key_of(type(study).__name__, plain, seed, examples, FIGURES, versions(), sources)
        entry = store.get(key)
        if entry is None:
            folder = self.directory / f"{key}-study"
            clock = folder / "seconds"
            began = time.process_time() - (float(clock.read_text()) if clock.exists() else 0.0)
            try:
                table = make(seed, folder)
            except BaseException:
                with suppress(OSError):  # no folder was made, or the disk is full, which make says better
                    write_whole(clock, str(time.process_time() - began).encode())
                raise
            entry = store.put(key, {"rows": table}, {"seconds": time.process_time() - began})
            shutil.rmtree(folder, ignore_errors=True)
        return entry.table("rows"), float(entry.facts["seconds"])


class Study(Protocol):
    """Runs that give an item its figures. A study is frozen, so that its settings name its stored runs."""

    @property
    def hours(self) -> float:
        """Hours that one seed takes on one core, about."""

    @property
    def data(self) -> str:
        """Name of the source that it trains on; "" for none."""

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Train what is not kept; return a row per figure and seed, `COLUMNS`, and seconds of all runs."""


@final
@dataclass(frozen=True)
class Kept:
    """Runs whose figures are kept and whose code is not: it is in the commit that the result names.

    Readings of a paper's setup that break the guarantee are such runs.
    """

    data: str
    hours: float = 1.0

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Raise SettingError: they are not made again here."""
        raise SettingError(
            "these figures were made by code that is not kept; check out the commit that papers/results.md "
            "names, and run its command there.",
            field="item",
        )


@final
@dataclass(frozen=True)
class Printed:
    """A figure as a paper prints it: `value` of what the others name."""

    data: str
    method: str
    group: str
    quantity: str
    value: float
    at: float = math.nan


@final
@dataclass(frozen=True)
class Reason:
    """Reason why figures differ from printed ones: a sentence with its evidence, and the figures; "": any."""

    text: str
    data: str = ""
    method: str = ""
    group: str = ""
    quantity: str = ""

    def covers(self, printed: Printed) -> bool:
        """Return True for a figure that the reason is about."""
        wanted = (self.data, self.method, self.group, self.quantity)
        given = (printed.data, printed.method, printed.group, printed.quantity)
        return all(not want or want == have for want, have in zip(wanted, given, strict=True))


@final
class Found:
    """Means over seeds with their standard errors.

    Attributes:
        table: columns `KEY`, mean, error (NaN of one seed) and seeds.
    """

    def __init__(self, table: pd.DataFrame) -> None:
        self.table = table.reset_index(drop=True)

    @classmethod
    def of(cls, rows: pd.DataFrame) -> Found:
        """Take means of rows by seed, without figures that are missing or not finite."""
        rows = rows[np.isfinite(rows["value"].astype(float))]
        grouped = rows.groupby(KEY, dropna=False, sort=False)["value"]
        table = grouped.agg(mean="mean", error="sem", seeds="count")
        return cls(table.reset_index())

    def where(self, **wanted: object) -> pd.DataFrame:
        """The rows with these values; a tuple stands for any of its values."""
        table = self.table
        for name, value in wanted.items():
            values = value if isinstance(value, tuple) else (value,)
            same = table[name].isin(values)
            if any(isinstance(each, float) and math.isnan(each) for each in values):
                same |= table[name].isna()
            table = table[same]
        return table

    def mean(self, **wanted: object) -> float:
        """The one mean with these values; NaN where there is none or several."""
        rows = self.where(**wanted)
        return float(rows["mean"].iloc[0]) if len(rows) == 1 else math.nan

    def last(self, **wanted: object) -> float:
        """The mean at the largest `at`; NaN where there is none."""
        rows = self.where(**wanted).sort_values("at")
        return float(rows["mean"].iloc[-1]) if len(rows) else math.nan


@final
@dataclass(frozen=True)
class Verdict:
    """Support of a claim by figures.

    Attributes:
        holds: None where figures do not decide.
        figures: basis of the verdict, by name.
    """

    holds: bool | None
    figures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, holds: bool | None, figures: Mapping[str, float]) -> Verdict:
        """Verdict by these figures; inconclusive where one is missing, or all are.

        >>> Verdict.of(0.4 < 0.5, {"DPSGD-F": 0.4, "DPSGD": 0.5}).holds, Verdict.of(False, {"gap": math.nan})
        (True, Verdict(holds=None, figures={}))
        """
        if not figures or any(math.isnan(each) for each in figures.values()):
            return cls(None)
        return cls(None if holds is None else bool(holds), figures)


@final
@dataclass(frozen=True)
class Claim:
    """Conclusion that a paper draws from an item, with a check by figures.

    Attributes:
        text: the conclusion, in our words.
        judge: the figures -> whether they support it.
        otherwise: why it does not hold here, with evidence, where it is known that it does not.
    """

    text: str
    judge: Callable[[Found], Verdict]
    otherwise: str = ""


@final
@dataclass(frozen=True)
class Item:
    """A table or figure of a paper.

    Attributes:
        name: such as "xu-table-1".
        paper: it is of.
        title: what it shows.
        studies: that give its figures.
        seeds: of the full form.
        printed: figures that the paper prints.
        claims: what it concludes.
        reasons: why figures differ.
        plots: of the figures.
        columns: quantities that tables show, by heading; others are in the plots and in the rows alone.
        notes: what of the paper's setting is not known or not as here.
    """

    name: str
    paper: Paper
    title: str
    studies: tuple[Study, ...]
    seeds: int = 5
    printed: tuple[Printed, ...] = ()
    claims: tuple[Claim, ...] = ()
    reasons: tuple[Reason, ...] = ()
    plots: tuple[Plot, ...] = ()
    columns: tuple[str, ...] = ("accuracy", "change", "epsilon")
    notes: tuple[str, ...] = ()

    def hours(self, seeds: int | None = None, seeds_of: Mapping[str, int] | None = None) -> float:
        """Hours that the full form takes on two cores, about."""
        fewer = seeds_of or {}
        return sum(s.hours * fewer.get(s.data, seeds or self.seeds) for s in self.studies) / 2

    def select_rows(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows without curves and points that no plot, table or printed figure is of."""
        named = {*self.columns, *(each.quantity for each in self.printed)}
        named |= {name for plot in self.plots for name in plot.quantities}
        return rows[rows["at"].isna() | rows["quantity"].isin(named)]

    def sources(self) -> list[str]:
        """Names of the data that it needs."""
        return [data for data in dict.fromkeys(study.data for study in self.studies) if data]


def printed_table(
    data: str, quantity: str, groups: Sequence[str], rows: Mapping[str, Sequence[float]]
) -> tuple[Printed, ...]:
    """Figures of a printed table: method -> a figure for each group.

    >>> [each.value for each in printed_table("adult", "accuracy", ["all", "Male"], {"sgd": (0.81, 0.76)})]
    [0.81, 0.76]
    """
    return tuple(
        Printed(data, method, group, quantity, value)
        for method, values in rows.items()
        for group, value in zip(groups, values, strict=True)
    )
