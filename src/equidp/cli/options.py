"""Options of several commands, in the order of a person's questions; training options are in `Plan`."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from cyclopts import Group, Parameter, Token

from equidp._plain import types_in
from equidp.accounting.groups import BUDGETS
from equidp.advice.chosen_plan import SETTINGS
from equidp.cli.noise import Method as Method, Risk as Risk
from equidp.data import SOURCES
from equidp.data.features import FEATURES
from equidp.errors import SettingError
from equidp.evaluation.metrics import METRICS
from equidp.policies.setting import Bounded, MethodSetting, settings_of
from equidp.policies.table import AUTO, METHODS
from equidp.runs.decision import DecisionOptions as DecisionOptions
from equidp.tables.recipe import MISSING_RULES
from equidp.training.option import option_names
from equidp.training.plan import Plan
from equidp.training.release import RELEASES, release_class

if TYPE_CHECKING:
    NameOrFile = str
    MethodOrAuto = str
    MetricName = str
else:  # completes to names, and takes files and import paths
    NameOrFile = Literal[tuple(SOURCES)] | str | Path
    MethodOrAuto = Literal[(AUTO, *METHODS)] | str
    MetricName = Literal[tuple(METRICS)] | str

DATA, PREDICT, WHOM, PRIVACY, TRAINING, RUN = (
    Group(title, sort_key=at)
    for at, title in enumerate(("Data", "What to predict", "For whom", "Privacy", "Training", "The run"))
)

_PLAIN = (int, float, str, bool)


def file_name(_: Any, tokens: Sequence[Token]) -> Path:
    """The file to write that an option names; a text that ends as a folder's is refused."""
    text = tokens[0].value
    if text.endswith((os.sep, os.altsep or os.sep)):
        raise SettingError(f"{tokens[0].keyword} {text!r} names a folder; expected the name of a file.")
    return Path(text)


_SETTINGS_HELP = "; ".join(f"{name}: {what}" for name, what in SETTINGS.items())

Data = Annotated[
    NameOrFile,
    Parameter(
        help="A CSV or Parquet file, a named dataset, or my_module:MySource.", group=DATA, show_choices=False
    ),
]
MethodToTrain = Annotated[
    MethodOrAuto,
    Parameter(
        help="equidp methods lists them; or my_module:MyPolicy; auto (default): what served such data best.",
        group=TRAINING,
        show_choices=False,
    ),
]
Settings = Annotated[
    str,
    Parameter(
        name="--settings", help=f"Settings to start from. {_SETTINGS_HELP}.", choices=SETTINGS, group=TRAINING
    ),
]
Jobs = Annotated[int | None, Parameter(help="Number of processes; default: one for each core.")]
Device = Annotated[str, Parameter(help="cpu, cuda, cuda:1, mps; auto: a GPU if there is one.")]
Metric = Annotated[
    MetricName,
    Parameter(help=f"Metric: {', '.join(METRICS)}.", group=PREDICT, show_choices=False),
]
JsonFile = Annotated[
    Path | None,
    Parameter(name="--json", help="Write the results to this file as JSON.", converter=file_name),
]
Config = Annotated[
    Path | None,
    Parameter(help="run.toml, a file of all options: inspect --out begins one.", group=RUN),
]
Set = Annotated[
    tuple[str, ...],
    Parameter(name="--set", help="Any other field of run.toml: training.momentum=0.9. Repeat it.", group=RUN),
]
RunFolder = Annotated[Path, Parameter(help="A folder that equidp train made.")]
TrustCode = Annotated[
    bool,
    Parameter(
        help="Import code that the folder names as module:name. It can do anything: use it only if you trust "
        "who made the folder."
    ),
]
Rows = Annotated[
    Path | None,
    Parameter(help="CSV or Parquet file with the columns of the run; default: the run's test examples."),
]
Lacking = Annotated[
    tuple[str, ...],
    Parameter(help="Columns that the table may lack, or have no known value in."),
]
RowsSep = Annotated[
    str | None, Parameter(name="--sep", help="Character between its columns; default: as in the run's table.")
]
RowsCharset = Annotated[
    str | None,
    Parameter(name="--charset", help="Encoding of characters; default: as in the run's table."),
]
Parameter(name="*", group=PREDICT)(DecisionOptions)


def options_of(name: str, settings: Iterable[tuple[MethodSetting, Group]]) -> Any:
    """Return a frozen dataclass with a field for each setting, in its group, which is None unless given."""
    made = []
    for each, group in settings:
        kind = Literal[each.names] | _without_none(each.type) if each.names else _without_none(each.type)
        parameter = Parameter(group=group, show_choices=len(each.names) < 5)
        default = dataclasses.field(default=None, metadata={"help": each.help})
        made.append((each.name, Annotated[kind | None, parameter], default))
    return Parameter(name="*")(
        dataclasses.make_dataclass(name, made, namespace={"__module__": __name__}, frozen=True)
    )


def settings_in(part: type, names: Sequence[str]) -> list[MethodSetting]:
    """Return fields of a part of a run, such as `Plan`, that are made by `option`."""
    kinds, known = get_type_hints(part), {each.name: each for each in dataclasses.fields(part)}
    return [
        MethodSetting(name, kinds[name], None, known[name].metadata["help"], option_names(known[name]))
        for name in names
    ]


def _without_none(kind: Any) -> Any:
    """The type of an optional value; the first plain one of several."""
    parts = [part for part in types_in(kind) if part is not NoneType]
    return next((part for part in parts if part in _PLAIN), parts[0])


OF_PRIVACY = ("noise_multiplier", "delta")
OF_TRAINING = ("model", "epochs", "batch_size", "learning_rate", "class_weight")
"""Fields of `Plan` that are options of commands which train; all others are given by --set."""
_BOUND = settings_of(Bounded)[0]
_PREPROCESSING = next(
    each for kind in map(release_class, RELEASES) for each in kind.options() if each.name == "preprocessing"
)


@Parameter(name="*")
@dataclass(frozen=True)
class TableOptions:
    """Options of a table."""

    target: Annotated[str | None, Parameter(group=PREDICT)] = None
    """Column to predict."""
    positive: Annotated[str | None, Parameter(group=PREDICT)] = None
    """The one of two classes whose risk is predicted; default: yes, true, 1."""
    group: Annotated[tuple[str, ...], Parameter(group=WHOM)] = ()
    """Columns of groups, none of which should be worse off, with commas."""
    person: Annotated[str | None, Parameter(group=WHOM)] = None
    """Column that says whose row it is: epsilon then holds for people."""
    rows_per_person: Annotated[int | None, Parameter(group=WHOM)] = None
    """The most rows of a person to train on; a public number."""
    drop: Annotated[tuple[str, ...], Parameter(group=DATA)] = ()
    """Columns to leave out, with commas."""
    missing: Annotated[str | None, Parameter(choices=MISSING_RULES, group=DATA)] = None
    """Missing values: refuse them (default), or make them a category."""


PlanOptions = options_of(
    "PlanOptions",
    [
        *((each, PRIVACY) for each in (*settings_in(Plan, OF_PRIVACY), _PREPROCESSING)),
        *((each, TRAINING) for each in (*settings_in(Plan, OF_TRAINING), _BOUND)),
    ],
)


@Parameter(name="*")
@dataclass(frozen=True)
class InputOptions:
    """Options of inputs and of the decision, of commands that train."""

    features: Annotated[
        str | None,
        Parameter(help=f"For images, fixed features to train on: {', '.join(FEATURES)}.", group=DATA),
    ] = None
    threshold: Annotated[
        float | str | None,
        Parameter(help="Lowest risk at which it is predicted, or base-rate.", group=PREDICT),
    ] = None


@Parameter(name="*")
@dataclass(frozen=True)
class TargetOptions:
    """Privacy that the noise is calibrated to."""

    epsilon: Annotated[float | None, Parameter(group=PRIVACY)] = None
    """Target epsilon: 1 is strong, 3 to 8 are common, above 7 promises little."""
    risk: Annotated[Risk, Parameter(group=PRIVACY)] = ()


@Parameter(name="*", group=PRIVACY)
@dataclass(frozen=True)
class LedgerOptions:
    """A ledger that all runs on the data share."""

    ledger: Path | None = None
    """Ledger that all runs on this data share; made if there is none."""
    ledger_epsilon: float | None = None
    """Limit of a new ledger: epsilon of all its runs together."""
    ledger_delta: float | None = None
    """Limit of a new ledger: delta of all its runs together."""


def given_fields(*parts: Any, **others: Any) -> dict[str, Any]:
    """Return the fields of options that are given, and other options that are, by name."""
    listed = [*map(vars, parts), others]
    return {name: value for part in listed for name, value in part.items() if value not in (None, ())}


def check_noise(epsilons: Sequence[float], changes: Mapping[str, Any]) -> None:
    """Refuse two of epsilon (or budgets) and noise multiplier, and an invalid epsilon."""
    for epsilon in epsilons:
        if not 0 < epsilon < math.inf:
            raise SettingError(f"--epsilon {epsilon:g}; expected a finite number above 0, such as 3.")
    levels = [f"--epsilon {','.join(map(str, epsilons))}"] if epsilons else []
    levels += [f"epsilon_by_group={changes[BUDGETS]}"] if BUDGETS in changes else []
    if levels and "noise_multiplier" in changes:
        raise SettingError(
            f"{' with '.join(levels)} and --noise-multiplier {changes['noise_multiplier']}: each decides the "
            "noise; give one of the two.",
            field="epsilon",
        )
