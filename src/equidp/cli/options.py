"""Options of several commands: frozen dataclasses, some generated from settings of plans and methods."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Group, Parameter, Token

from equidp._files import check_writable
from equidp._validate import names
from equidp.accounting.groups import BUDGETS, GroupSettings
from equidp.accounting.risk import RiskTarget
from equidp.accounting.target import Target
from equidp.advice.advise import AUTO
from equidp.advice.chosen_plan import SETTINGS
from equidp.cli.noise import (
    BOUNDED_HELP,
    Accountant,
    Method as Method,
    MethodName as MethodName,
    Risk as Risk,
)
from equidp.cli.settings import options_from, part_settings, part_values
from equidp.data import SOURCES, DataSource, Recipe, open_source
from equidp.data.features import FEATURES
from equidp.engines import ENGINES
from equidp.errors import SettingError
from equidp.ledger.append_only import check_ledger_place
from equidp.policies.table import METHODS
from equidp.runs.config import BudgetFile, RunData
from equidp.tables.recipe import ALL_COLUMNS, MARKS, MISSING_RULES
from equidp.training.plan import Plan

if TYPE_CHECKING:
    NameOrFile = str
    MethodOrAuto = str
else:  # completes to names, and takes files and import paths
    NameOrFile = Literal[tuple(SOURCES)] | str | Path
    MethodOrAuto = Literal[(AUTO, *METHODS)] | str

_DATA_HELP = "A dataset, a path to a CSV or Parquet file, or my_module:MySource; --data is the same."
_ROWS_HELP = "CSV or Parquet file with the columns of the run; default: the test examples of the run."
_FIGURES_HELP = "Write each figure to this folder, as PDF and SVG at the width of a paper's column."
_DEVICE_HELP = "Where to compute: cpu, cuda, cuda:1, mps; or auto, which takes a GPU if there is one."
_TOML_HELP = "TOML file with any of these options, such as epsilon = 3; the command line overrides it."

_FEATURES_HELP = (
    f"Train on fixed features of images: {', '.join(FEATURES)}; efficientnet-lite0@112 resizes images to 112 "
    "pixels a side."
)

_Value = TypeVar("_Value")


def file_name(_: Any, tokens: Sequence[Token]) -> Path:
    """The file to write that an option names; a text that ends as a folder's is refused."""
    text = tokens[0].value
    if text.endswith((os.sep, os.altsep or os.sep)):
        raise SettingError(f"{tokens[0].keyword} {text!r} names a folder; expected the name of a file.")
    return Path(text)


Data = Annotated[NameOrFile, Parameter(help=_DATA_HELP)]
MethodToTrain = Annotated[
    MethodOrAuto,
    Parameter(help=f"{BOUNDED_HELP} auto: method and settings that served this kind of data best."),
]
Engine = Annotated[str, Parameter(help="How the norms of gradients are measured.", choices=ENGINES)]
Settings = Annotated[
    str,
    Parameter(
        name="--settings",
        help="Settings to start from; other options replace single ones. "
        + "; ".join(f"{name}: {what}" for name, what in SETTINGS.items())
        + ".",
        choices=SETTINGS,
    ),
]
Jobs = Annotated[int | None, Parameter(help="Number of processes; default: one for each core.")]
Device = Annotated[str, Parameter(help=_DEVICE_HELP)]
Fresh = Annotated[bool, Parameter(help="Recompute what is stored of the same settings and data.")]
JsonFile = Annotated[
    Path | None,
    Parameter(name="--json", help="Write the results to this file as JSON.", converter=file_name),
]
Figures = Annotated[Path | None, Parameter(help=_FIGURES_HELP)]
Config = Annotated[Path | None, Parameter(help=_TOML_HELP)]
RunFolder = Annotated[Path, Parameter(help="A folder that equidp train made.")]
TrustCode = Annotated[
    bool,
    Parameter(
        help="Import code that the folder names as module:name. It can do anything, so only for folders of "
        "people whom you trust."
    ),
]
Rows = Annotated[Path | None, Parameter(help=_ROWS_HELP)]
RowsSep = Annotated[
    str | None, Parameter(name="--sep", help="Character between its columns; default: as of the run's table.")
]
RowsCharset = Annotated[
    str | None,
    Parameter(name="--charset", help="Encoding of characters; default: as of the run's table."),
]

_PLAN = Group("Training", sort_key=2)


@Parameter(name="*", group=_PLAN)
@options_from(part_settings(Plan, leave_out=("loss",)))
class PlanOptions:
    """Options of training."""


@Parameter(name="*", group=_PLAN)
@options_from(part_settings(Plan, leave_out=("loss", "noise_multiplier", "delta", "views", "augmentation")))
class NoiselessPlanOptions:
    """Options of training without noise."""


@Parameter(name="*", group=_PLAN)
@dataclass(frozen=True)
class MoreSettings:
    """Settings of methods, and those of training that few runs change."""

    clipping_bound: float | None = None
    """Clipping bound C, or C_0 where groups have their own; default: of the dataset, or of the method."""
    set: tuple[str, ...] = ()
    """More settings of training and of the method: momentum=0.9,smoothing=0.5. equidp methods lists them."""


@Parameter(name="*", group=Group("Data in a file", sort_key=1))
@dataclass(frozen=True)
class TableOptions:
    """Options of reading a file, and of features of inputs."""

    recipe: Path | None = None
    """TOML file with what follows, as equidp inspect --out writes it; options override it."""
    target: str | None = None
    """Column to predict: of a file, or of a source with several to choose from."""
    group: tuple[str, ...] = ()
    """Column of the groups; several, with commas, are crossed. May be the target."""
    group_as_input: bool | None = None
    """Make inputs of the group columns too; by default the model does not read them."""
    drop: tuple[str, ...] = ()
    """Columns to leave out, with commas."""
    categorical: tuple[str, ...] = ()
    """Columns of texts, also where they look like numbers, such as a ZIP code."""
    numeric: tuple[str, ...] = ()
    """Columns of numbers, also with $, % or brackets; any other text in them counts as missing."""
    date: tuple[str, ...] = ()
    """Columns of dates, which become days since 2000: admitted, admitted=dayfirst, admitted=%d.%m.%Y|iso."""
    fold: tuple[str, ...] = ()
    """Columns of texts that are the same where capitals, spaces or leading zeros alone differ: ids."""
    na: Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True)] = ()
    """Code of a missing value in all columns, or in one: -999, age=-999."""
    not_na: tuple[str, ...] = ()
    """Text that is a value though it looks missing: region=NA."""
    weight: str | None = None
    """Column of public weights >= 0 of the rows' losses in training; not an input."""
    person: str | None = None
    """Column that says whose row it is: epsilon then holds for people; needs --rows-per-person."""
    rows_per_person: int | None = None
    """The most rows of a person that are trained on; a public number."""
    missing: Annotated[str | None, Parameter(choices=MISSING_RULES)] = None
    """Treatment of missing values: refuse them (default), or make them a category."""
    bounds: str = ""
    """Public ranges of numbers, such as age=0:100,hours=0:99, used instead of statistics of the data."""
    test_share: float | None = None
    """Share of the rows to test on, between 0 and 1; default: 0.2."""
    sep: str | None = None
    """Character between columns of a CSV file: a comma (default), ";", tab, space."""
    charset: str | None = None
    """Encoding of the characters of a CSV file: utf-8 (default), latin-1, cp1252."""
    thousands: str | None = None
    """Mark between thousands, in all columns or in some: comma, income=comma."""
    decimal: str | None = None
    """Decimal mark, in all columns or in some: point (default), comma, lab=comma."""
    encoding: str | None = None
    """Encoding of columns of numbers: standard (scaled), cut (one-hot over 4 and 16 intervals), cut:8."""
    features: Annotated[str | None, Parameter(help=_FEATURES_HELP, group="Parameters")] = None

    def whole(self) -> Recipe:
        """The recipe of the file, changed by the other options."""
        others = ("recipe", "features", "encoding")
        options = (each.name for each in dataclasses.fields(self) if each.name not in others)
        given = {name: getattr(self, name) for name in options if getattr(self, name) not in (None, (), "")}
        parsers: dict[str, Callable[[Any], Any]] = {
            "bounds": parse_bounds,
            "date": lambda texts: {
                name: form or "iso" for name, form in once_by_name("date", map(by_column, texts)).items()
            },
            "na": parse_na,
            "not_na": parse_na,
            "thousands": parse_marks,
            "decimal": parse_marks,
        }
        return self._recipe.with_changes(
            {name: parsers.get(name, lambda same: same)(given[name]) for name in given}
        )

    @cached_property
    def _recipe(self) -> Recipe:
        """The recipe of the file, read once: it may be a pipe."""
        return Recipe() if self.recipe is None else Recipe.read(self.recipe)

    def open(self, data: str) -> DataSource:
        """The named dataset, or the file as these options describe it."""
        return open_source(data, recipe=self.whole(), features=self.features, encoding=self.encoding)

    def run_data(self, data: str, seed: int) -> RunData:
        """Return the data of a run: a file by its absolute path, as these options describe it."""
        name = str(Path(data).absolute()) if data not in SOURCES and Path(data).exists() else data
        return RunData(name, self.whole(), self.features, seed, self.encoding)


@Parameter(name="*")
@dataclass(frozen=True)
class TargetOptions:
    """Privacy that the noise is calibrated to."""

    epsilon: float | None = None
    """Target epsilon, which the noise is calibrated to."""
    risk: Risk = None
    accountant: Accountant = "pld"

    def target(self, changes: Mapping[str, Any]) -> Target:
        """Return the target, or the largest budget of groups among settings that are given."""
        risk = None if self.risk is None else RiskTarget.parse(self.risk)
        budgets = GroupSettings.of(None, None, changes.get(BUDGETS))
        return Target(budgets.run_epsilon(self.epsilon), risk, self.accountant)


_BUDGET = "budget"


@Parameter(name="*", group=Group("Budget", sort_key=4))
@options_from(part_settings(BudgetFile, prefix=_BUDGET))
class BudgetOptions:
    """A budget that several commands share."""

    def file(self, *read: str | Path | None) -> BudgetFile | None:
        """Return the budget's file; None without a budget.

        Args:
            read: files that the command reads; the budget's must be another one.

        Raises:
            SettingError: options of a budget without its file, or a file that no ledger can be kept in.
        """
        given = part_values(self, BudgetFile, _BUDGET)
        if not given:
            return None
        if "path" not in given:
            names = ", ".join(f"--{_BUDGET}-{name}" for name in given)
            raise SettingError(
                f"{names}: of a budget, whose file is not given; give --{_BUDGET} too.",
                field=f"--{_BUDGET}-{next(iter(given))}",
            )
        check_writable(given["path"], *read)
        check_ledger_place(given["path"])
        return BudgetFile(**{**given, "path": given["path"].absolute()})


def check_noise(epsilons: Sequence[float], changes: Mapping[str, Any], risk: str | None = None) -> None:
    """Refuse two of epsilon (or budgets), target risk and noise multiplier, and an invalid epsilon."""
    for epsilon in epsilons:
        if not 0 < epsilon < math.inf:
            raise SettingError(f"--epsilon {epsilon:g}; expected a finite number above 0, such as 3.")
    levels = [f"--epsilon {','.join(map(str, epsilons))}"] if epsilons else []
    levels += [f"--epsilon-by-group {changes[BUDGETS]}"] if BUDGETS in changes else []
    given = [" with ".join(levels)] if levels else []
    given += [] if risk is None else [f"--risk {risk}"]
    if "noise_multiplier" in changes:
        given.append(f"--noise-multiplier {changes['noise_multiplier']}")
    if len(given) > 1:
        raise SettingError(
            f"{' and '.join(given)}: each decides the noise; give one of the two.",
            field=given[0].partition(" ")[0],
        )


def parse_bounds(text: str) -> dict[str, tuple[float, float]]:
    """Return the public range of each column.

    Raises:
        SettingError: says which part is wrong.

    >>> parse_bounds("age=0:100, hours=0:99")
    {'age': (0.0, 100.0), 'hours': (0.0, 99.0)}
    """
    bounds: dict[str, tuple[float, float]] = {}
    for part in names(text):
        name, _, span = part.rpartition("=")
        try:
            low, high = (float(end) for end in span.split(":"))
        except ValueError:
            low = high = math.nan
        if not (name and low < high and math.isfinite(low) and math.isfinite(high)):
            raise SettingError(
                f"bounds {part!r}; expected column=low:high with low < high, such as age=0:100."
            )
        if name.strip() in bounds:
            raise SettingError(
                f"bounds {text!r} name column {name.strip()!r} twice; give one range for each."
            )
        bounds[name.strip()] = (low, high)
    return bounds


def by_column(text: str) -> tuple[str, str]:
    """Return a column and its value from `column=value`; the value is "" where there is none."""
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def parse_counts(text: str) -> dict[str, int]:
    """Return the number of each name.

    >>> parse_counts("mnist=1, adult=3")
    {'mnist': 1, 'adult': 3}
    """
    counts: dict[str, int] = {}
    for part in names(text):
        name, count = by_column(part)
        if not (name and count.isdecimal()) or name in counts:
            raise SettingError(
                f"{part!r} in {text!r}; expected name=number, each name once, such as mnist=1."
            )
        counts[name] = int(count)
    return counts


def parse_na(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the texts that stand for a missing value, by column.

    >>> parse_na(["-999", "age=-1", "age=0"])
    {'*': ['-999'], 'age': ['-1', '0']}
    """
    found: dict[str, list[str]] = {}
    for text in texts:
        name, value = by_column(text) if "=" in text else (ALL_COLUMNS, text)
        found.setdefault(name, []).append(value)
    return found


def parse_marks(text: str) -> dict[str, str]:
    """Return the mark within numbers of each column: a word or the mark itself.

    >>> parse_marks(","), parse_marks("comma, fee=point"), parse_marks("fee=,")
    ({'*': ','}, {'*': ',', 'fee': '.'}, {'fee': ','})
    """
    if text in MARKS.values():
        return {ALL_COLUMNS: text}
    parts = (by_column(part) if "=" in part else (ALL_COLUMNS, part) for part in names(text))
    given = once_by_name("marks", parts)
    # a comma alone was taken as the end of the part
    return {name: MARKS.get(mark, mark or ",") for name, mark in given.items()}


def once_by_name(option: str, pairs: Iterable[tuple[str, _Value]]) -> dict[str, _Value]:
    """Return values by name, or raise a SettingError where a name has two."""
    found: dict[str, _Value] = {}
    for name, value in pairs:
        if name in found:
            which = "all columns" if name == ALL_COLUMNS else f"column {name!r}"
            raise SettingError(f"{option} of {which} given twice; give one for each.", field=option)
        found[name] = value
    return found
