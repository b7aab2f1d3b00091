"""`equidp compare`: one model trained several ways, and what privacy cost each group."""

from __future__ import annotations

import itertools
import logging
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Group, Parameter

from equidp._files import check_folder, check_outputs, command_line, write_whole
from equidp._validate import check_whole, names
from equidp.cli import options
from equidp.cli.app import command
from equidp.cli.messages import say, stoppable
from equidp.cli.settings import parse_set, read_run
from equidp.comparison.cells import CellResult
from equidp.comparison.compare import PreparedComparison, log, prepare, run_comparison, settings_of_runs
from equidp.comparison.plan import DEFAULT_METHODS, ComparisonPlan
from equidp.comparison.tune import FINALISTS, tuning_seeds
from equidp.data.dataset import DataSource
from equidp.diagnostics import Diagnostics
from equidp.errors import SettingError
from equidp.policies.methods import ignored_sentences
from equidp.policies.table import AUTO
from equidp.report.comparison import markdown, print_comparison
from equidp.report.diagnosis import sensitive_findings
from equidp.report.plan import plan_table
from equidp.runs.comparison import comparison_of
from equidp.runs.run_file import RunFile, section_of
from equidp.store import Store

app = command(
    "compare",
    "equidp compare --report report.html",
    "equidp compare adult --methods sgd,dpsgd,dpsgd-f --seeds 5",
    "equidp compare people.csv --target income --group sex --epsilon 1,3,8 \\\n      --report report.html",
    "equidp compare adult --methods dpsgd,my_module:MyPolicy --sweep clipping_bound=0.5,1,2",
    "equidp compare adult --methods dpsgd,my_module:MyPolicy --tune 8 --against dpsgd",
    "equidp compare --diagnose --report report.html",
)


@Parameter(name="*")
@dataclass(frozen=True)
class ComparisonOptions:
    """Options of the comparison: fields of `ComparisonPlan`."""

    methods: tuple[options.MethodOrAuto, ...] = DEFAULT_METHODS
    """Methods to compare, with commas; also user-defined (my_module:MyPolicy); auto: as in equidp train."""
    seeds: int = 5
    """Number of runs of each method."""
    settings: options.Settings | None = None
    epsilons: Annotated[tuple[float, ...], Parameter(name="--epsilon")] = ()
    """Target epsilon, which the noise is calibrated to; several, with commas, show the trade-off. Default: 3,
    or the published noise."""
    sweep: tuple[str, ...] = ()
    """Setting of the plan or of methods with values to compare, such as clipping_bound=1,2,5; several: all
    combinations."""
    gap_tolerance: float = 0.05
    """Largest gap in privacy cost that counts as equal, in the metric: 0.05 is 5 points of accuracy."""
    metric: options.Metric | None = None
    against: str | None = None
    """Private method among --methods with which each other one is compared seed by seed: differences with
    intervals and corrected p values."""
    tune: int | None = None
    """Number of random settings to try for each method, the same for all, plain SGD too. The best is chosen
    on a part held out of training. Settings that you give stay as they are."""

    def plan(
        self, run: RunFile, data: str | None, diagnosis: Diagnostics | None
    ) -> tuple[ComparisonPlan, DataSource]:
        """Return the plan of the comparison that these options, and those of its runs, ask for, and its
        data."""
        own = {name: getattr(self, name) for name in ("methods", "seeds", "gap_tolerance", "against", "tune")}
        watches = () if diagnosis is None else (diagnosis,)
        changes = parse_sweep(self.sweep)
        return comparison_of(run, data, epsilons=self.epsilons, changes=changes, callbacks=watches, **own)


@Parameter(name="*")
@dataclass(frozen=True)
class PlaceOptions:
    """Options of the place where runs are trained and kept."""

    directory: Path = Path("equidp-runs")
    """Folder where finished runs are kept; another one trains all again."""
    jobs: options.Jobs = None
    device: options.Device = "cpu"


@Parameter(name="*", group=Group("Results", sort_key=6))
@dataclass(frozen=True)
class ResultOptions:
    """Options of the files of results."""

    report: Annotated[Path | None, Parameter(converter=options.file_name)] = None
    """Write an HTML report to this file."""
    tables: Annotated[Path | None, Parameter(name="--table", converter=options.file_name)] = None
    """Write tables of means and intervals to this file, in Markdown (.md)."""
    json_file: options.JsonFile = None


@Parameter(name="*", group=Group("Diagnosis", sort_key=7))
@dataclass(frozen=True)
class DiagnosisOptions:
    """Options of the diagnosis."""

    diagnose: bool = False
    """Show where the disparity comes from; reads raw training data."""
    diagnose_every: Annotated[
        int | None, Parameter(help=f"Steps between diagnoses; default: {Diagnostics.every}.")
    ] = None
    diagnose_groups: tuple[str, ...] = ()
    """Groups to diagnose, with commas; default: all."""

    def plan(self) -> Diagnostics | None:
        """Plan of the diagnosis; None without one."""
        if not self.diagnose and (self.diagnose_groups or self.diagnose_every is not None):
            raise SettingError(
                "--diagnose-groups and --diagnose-every say how to diagnose; give --diagnose too."
            )
        every = Diagnostics.every if self.diagnose_every is None else self.diagnose_every
        return Diagnostics(every, self.diagnose_groups or None) if self.diagnose else None


@app.default
def compare_command(
    data: options.Data | None = None,
    *,
    wanted: ComparisonOptions = ComparisonOptions(),
    place: PlaceOptions = PlaceOptions(),
    config: options.Config = None,
    table: options.TableOptions = options.TableOptions(),
    inputs: options.InputOptions = options.InputOptions(),
    plan: options.PlanOptions = options.PlanOptions(),
    set_fields: options.Set = (),
    results: ResultOptions = ResultOptions(),
    diagnosis: DiagnosisOptions = DiagnosisOptions(),
    dry_run: Annotated[
        bool, Parameter(help="Check everything, say how many runs there are, and train nothing.")
    ] = False,
) -> None:
    """Train one model several ways, private and not, and show what privacy cost each group.

    Samples and noise come from seeds, so that methods are compared fairly.
    The models are for choosing a method, not for release.
    """
    given = options.given_fields(table, inputs, plan, settings=wanted.settings, metric=wanted.metric)
    run = read_run(config, set_fields, given, wanted.methods)
    options.check_noise(wanted.epsilons, run.options)
    if place.jobs is not None:
        check_whole(1, jobs=place.jobs)
    if results.tables is not None and results.tables.suffix.lower() != ".md":
        raise SettingError(
            f"--table {results.tables}; tables are written in Markdown, to .md.", field="table"
        )
    outputs = {"--report": results.report, "--json": results.json_file, "--table": results.tables}
    check_outputs(outputs, data, config)
    check_folder(place.directory)
    asked, source = wanted.plan(run, data, diagnosis.plan())
    if named := [method for method in wanted.methods if method != AUTO]:
        for sentence in ignored_sentences(asked.options, named):
            say(sentence)
    if dry_run:
        _print_plan(prepare(source, asked, directory=place.directory, device=place.device))
        return
    again = command_line("equidp", *sys.argv[1:])
    kept = f"Finished runs are kept in {str(place.directory.absolute())!r}. This goes on from them: {again}"
    with stoppable(f"stopped. {kept}"), rows_as_they_finish():
        try:
            comparison = run_comparison(
                source,
                asked,
                directory=place.directory,
                jobs=place.jobs,
                device=place.device,
                command=again,
            )
        except SettingError as error:
            if error.field == "jobs":  # a process died
                say(kept)
            raise
        if results.json_file is not None:
            comparison.to_json(results.json_file)
        if results.report is not None:
            comparison.write_report(results.report)
        if results.tables is not None:
            write_whole(results.tables, markdown(comparison))
        print_comparison(comparison)  # last: its reader may close the pipe
        for sentence in sensitive_findings(comparison):
            print(sentence)
        for name, path in (("Report", results.report), ("Tables", results.tables)):
            if path is not None:
                say(f"{name}: {path.resolve()}")


def parse_sweep(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return changes for every combination of values in texts such as "clipping_bound=1,2,5".

    The texts may be cut at their commas.

    Raises:
        SettingError: a text without "=", an unknown setting, or a value of another type.

    >>> parse_sweep(["clipping-bound=1", "5", "epochs=10"])
    [{'clipping_bound': 1.0, 'epochs': 10.0}, {'clipping_bound': 5.0, 'epochs': 10.0}]
    """
    values: dict[str, list[Any]] = {}
    name = ""
    for text in itertools.chain.from_iterable(map(names, texts)):
        head, equals, value = text.rpartition("=")
        name = head.strip().replace("-", "_") if equals else name
        if not name or not value.strip():
            raise SettingError(
                f"--sweep {text!r}; expected setting=values, such as clipping_bound=1,2,5.", field="--sweep"
            )
        _, read, _ = parse_set(f"{section_of(name)}.{name}={value}")
        listed = values.setdefault(name, [])
        listed += [each for each in read.values() if each not in listed]
    combinations = itertools.product(*values.values())
    return [dict(zip(values, each, strict=True)) for each in combinations] if values else []


@contextmanager
def rows_as_they_finish() -> Iterator[None]:
    """Print a row for each run that finishes, also where standard error is no terminal."""

    class Rows(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    handler, level, spreads = Rows(), log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = spreads


def _print_plan(prepared: PreparedComparison) -> None:
    """Print the settings, the number of runs, and what each kind would spend."""
    plan_table(settings_of_runs(prepared)).print()
    asked, cells = prepared.asked, prepared.first_cells()
    further = sum(len(each.rates) > 1 for each in prepared.references) * (len(prepared.seeds) - 1)
    store = Store(prepared.folder)
    kept = 0 if asked.tune else sum(CellResult.kept(store, cell.key) is not None for cell in cells)
    private = len(prepared.private) * len(prepared.seeds)
    print(
        f"{len(cells) + further} runs on {len(prepared.seeds)} seeds: {private} of private methods, "
        f"{len(cells) + further - private} without privacy. {kept} are kept in {str(prepared.folder)!r}."
    )
    if asked.tune is not None:
        first, *others = tuning_seeds(asked.seed_numbers)
        print(
            f"Before them, trials choose settings: up to {asked.tune} of each method on seed {first}, and "
            f"the best {FINALISTS} on seeds {' and '.join(map(str, others))}. Until then, steps "
            "and noise are by the plan's own settings:"
        )
    for label, steps, noise, epsilon, delta in prepared.check():
        spent = "no privacy"
        if math.isfinite(epsilon):
            spent = f"noise multiplier {noise:.4g}, epsilon {epsilon:.4g} at delta {delta:g}"
        print(f"{label}: {steps:,} steps, {spent}.")
