"""`equidp compare`: one model trained several ways, and what privacy cost each group."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from equidp._files import check_folder, check_outputs, command_line
from equidp._validate import check_whole
from equidp.advice.advise import AUTO
from equidp.cli import options
from equidp.cli.app import command
from equidp.cli.messages import progress_bar, say, stoppable
from equidp.cli.settings import read_run
from equidp.comparison.compare import Counts, PreparedComparison, prepare, run_comparison
from equidp.comparison.plan import DEFAULT_METHODS, ComparisonPlan, Search
from equidp.comparison.result import check_ending
from equidp.comparison.sweep import parse_sweep
from equidp.comparison.tune import FINALISTS, SettingSearch
from equidp.diagnostics import Diagnostics
from equidp.errors import SettingError
from equidp.policies.methods import ignored_sentences
from equidp.report.advice import advice_sentences
from equidp.report.comparison import print_comparison, write_report
from equidp.report.diagnosis import sensitive_findings
from equidp.report.plan import plan_table
from equidp.runs.comparison import comparison_plan
from equidp.runs.run_file import RunFile

app = command(
    "compare",
    "equidp compare --report report.html",
    "equidp compare adult --methods sgd,dpsgd,dpsgd-f --seeds 5",
    "equidp compare people.csv --target income --group sex --epsilon 1,3,8 \\\n      --report report.html",
    "equidp compare adult --methods dpsgd,my_module:MyPolicy --sweep clipping_bound=0.5,1,2",
    "equidp compare adult --methods dpsgd,my_module:MyPolicy --tune 8 --against dpsgd",
    "equidp compare --set privacy.individual=true --report report.html",
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
    baseline: Search = "best"
    """Models without privacy that costs are measured against: best: of several settings for each model, and
    boosted trees on a table; plan: plain SGD by the plan alone."""
    against: str | None = None
    """Private method among --methods with which each other one is compared seed by seed: differences with
    intervals and corrected p values."""
    tune: int | None = None
    """Number of settings to try for each method, the same random ones for all; they are chosen on a part held
    out of training. Settings that are given stay as they are."""

    def plan(self, run: RunFile, diagnosis: Diagnostics | None) -> ComparisonPlan:
        """Return the plan of the comparison that these options, and those of its runs, ask for."""
        of_runs = ("settings", "metric")
        own = {name: value for name, value in vars(self).items() if name not in of_runs}
        return comparison_plan(run, **{**own, "sweep": parse_sweep(self.sweep), "diagnosis": diagnosis})


@Parameter(name="*")
@dataclass(frozen=True)
class PlaceOptions:
    """Options of the place where runs are trained and kept."""

    directory: Path = Path("equidp-runs")
    """Folder where finished runs are kept."""
    fresh: options.Fresh = False
    jobs: options.Jobs = None
    device: options.Device = "cpu"


@Parameter(name="*", group=Group("Results", sort_key=6))
@dataclass(frozen=True)
class ResultOptions:
    """Where results go."""

    report: Annotated[Path | None, Parameter(converter=options.file_name)] = None
    """Write an HTML report to this file."""
    tables: Annotated[Path | None, Parameter(name="--table", converter=options.file_name)] = None
    """Write tables of means and intervals to this file, in Markdown (.md)."""
    json_file: options.JsonFile = None
    include_sensitive: bool = False
    """Add the groups' true epsilons to the report; do not share it."""

    def check(self, *, individual: bool) -> None:
        """Refuse sensitive values where there would be none."""
        if self.include_sensitive and not (individual and self.report is not None):
            raise SettingError(
                "--include-sensitive is for reports of individual privacy; give --report and --set "
                "privacy.individual=true."
            )


@Parameter(name="*", group=Group("Diagnosis", sort_key=7))
@dataclass(frozen=True)
class DiagnosisOptions:
    """Options of the diagnosis."""

    diagnose: bool = False
    """Find out where the disparity comes from; reads raw training data."""
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
    report, json_file = results.report, results.json_file
    given = options.given_fields(table, inputs, plan, settings=wanted.settings, metric=wanted.metric)
    run = read_run(config, set_fields, given, wanted.methods)
    options.check_noise(wanted.epsilons, run.options)
    asked = wanted.plan(run, diagnosis.plan())
    if named := [method for method in wanted.methods if method != AUTO]:
        for sentence in ignored_sentences(asked.changes, named):
            say(sentence)
    results.check(individual=asked.release_epsilon is not None)
    if results.tables is not None:
        check_ending(results.tables)
    outputs = {"--report": report, "--json": json_file, "--table": results.tables}
    check_outputs(outputs, data, config)
    check_folder(place.directory)
    source = run.run_data(data or run.table.get("data", "digits")).source()
    if place.jobs is not None:
        check_whole(1, jobs=place.jobs)
    if dry_run:
        prepared = prepare(source, asked, directory=place.directory, device=place.device)
        _print_plan(prepared, place.fresh)
        return
    kept = str(place.directory.absolute())
    stopped = (
        f"stopped. Finished runs are kept in {kept!r}: the same command continues from them, and with "
        "--directory from another folder."
    )
    with stoppable(stopped):
        with progress_bar() as on_progress:
            comparison = run_comparison(
                source,
                asked,
                directory=place.directory,
                jobs=place.jobs,
                device=place.device,
                on_progress=on_progress,
                command=command_line("equidp", *sys.argv[1:]),
                fresh=place.fresh,
            )
        if json_file is not None:
            comparison.to_json(json_file)
        if report is not None:
            write_report(comparison, report, include_sensitive=results.include_sensitive)
        if results.tables is not None:
            comparison.write_tables(results.tables)
        print_comparison(comparison)  # last: its reader may close the pipe
        for sentence in sensitive_findings(comparison):
            print(sentence)
        for name, path in (("Report", report), ("Tables", results.tables)):
            if path is not None:
                say(f"{name}: {path.resolve()}")


def _print_search(search: SettingSearch, found: Counts) -> None:
    """Print how many trials choose the settings, and what they are drawn from."""
    first, *others = search.seeds
    print(
        f"Before them, {found.trials} trials choose the settings, {found.missing_trials} of which would be "
        f"trained: up to {search.plan.draws} settings of each method on seed {first}, and the best "
        f"{FINALISTS} on seeds {' and '.join(map(str, others))}."
    )
    if found.missing_trials:
        print("Until they are chosen, steps and noise are by the plan's own settings:")


def _print_runs(prepared: PreparedComparison, found: Counts) -> None:
    """Print the number of runs by what they train, and how baselines are chosen among them."""
    private, trees = len(prepared.private), len(prepared.trees)
    kept = found.runs - found.missing
    plain = found.runs - private - trees
    parts = [f"{private} of methods", f"{plain} of plain SGD without privacy"]
    parts += [f"{trees} of boosted trees"] if trees else []
    print(
        f"{found.runs} runs on {len(prepared.sizes)} seeds: {', '.join(parts)}. {kept} are kept in "
        f"{str(prepared.folder)!r}, {found.missing} would be trained."
    )
    first, *others = prepared.sizes
    if (candidates := len(prepared.baselines.runs)) > 1:
        print(
            f"Plain SGD is tried by {candidates} settings on seed {first}"
            + (", and by the best of each kind of model there on the others." if others else ".")
        )


def _print_plan(prepared: PreparedComparison, fresh: bool) -> None:
    """Print the plan, the number of runs, and what each kind would spend."""
    choice = prepared.choice
    auto = choice.shared if choice.auto_takes else choice.automatic
    if auto is not None and auto.advice is not None:
        print(*advice_sentences(auto.advice), sep="\n")
    plan_table(prepared.setting_rows()).print()
    found = prepared.count_runs(fresh=fresh)
    _print_runs(prepared, found)
    if prepared.search is not None:
        _print_search(prepared.search, found)
    for kind in prepared.kinds:
        spent = "no privacy"
        if math.isfinite(kind.epsilon):
            spent = (
                f"noise multiplier {kind.noise_multiplier:.4g}, epsilon {kind.epsilon:.4g} at delta "
                f"{kind.delta:g}"
            )
        print(f"{kind.label}: {kind.steps:,} steps, {spent}.")
