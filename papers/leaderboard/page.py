"""leaderboard.md and its plots, made from stored results alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from equidp.evaluation.intervals import mean_interval
from equidp.policies.table import BASELINE
from papers.leaderboard.results import (
    FINALISTS,
    PUBLISHED,
    TUNING_SEEDS,
    Reported,
    Results,
    expected_best,
    worst_cost,
)
from papers.leaderboard.space import CONTESTS, PRIVATE, Contest

KEPT = Path("results") / "leaderboard"
"""Folder of results and plots, beside the page."""
STANDARD = "dpsgd"
TARGET = 0.005
"""Accuracy that the worst group may lose where a method counts as nearly free: half a point."""
MATTERS = 0.001
"""Differences below a tenth of a point, one person in a thousand, are too small to choose a method by."""
_CALIBRATED = 0.1

_INTRODUCTION = f"""# Accuracy loss by group: DP methods compared at equal tuning

Which method costs the worst group least, once each had the same chance to be set well? Published
comparisons often set one method with care and leave the others at their defaults, and tuning budgets decide
such comparisons ([Demelius et al., 2025](https://arxiv.org/abs/2510.01744)). Here every method gets the same
number of random settings from one declared space, and everything that was tried is shown.

This page and its plots are written from the files in [results/leaderboard](results/leaderboard) by
`python -m papers leaderboard --report`; a test holds that they agree. What a file lacks is trained by
`EQUIDP_DATA=... python -m papers leaderboard --only adult`.

How it is done, for each dataset and epsilon:

- **The score**, the same for all: the accuracy that the worst group lost against training without
  privacy, on the same split and initial weights. Ties go to the higher overall accuracy.
- **The search**: random settings from the space below, each calibrated to the same epsilon. Settings that
  methods share are the same for all of them under one number. Each is trained on four fifths of the training
  set of seed {TUNING_SEEDS[0]} and scored on the other fifth; the best {FINALISTS} again on seeds
  {" and ".join(map(str, TUNING_SEEDS[1:]))}, and the best mean of the three seeds is chosen. No test set is
  read; but where a seed splits all rows again, as of Adult and Dutch, a row that settings were chosen on may
  be a test row of the report.
- **The baseline** without privacy is the same model, tuned in the same way by overall accuracy.
- **The report**: the chosen setting, trained on the whole training set of new seeds and evaluated on their
  test sets. Intervals are Student's, 95%, over seeds; differences are paired by seed. A method beats another
  where the whole interval, widened for the number of methods (Bonferroni), says so, and by a tenth of a point
  at least: one person in a thousand.

Choosing settings reads the data and is not charged here: these are figures for research on public data. To
choose on data of your own, use the rules (docs/advise.md), or charge the choice."""


def write_page(folder: Path) -> None:
    """Write leaderboard.md and a plot for each dataset that has results."""
    kept = list(_load_reported(folder))
    for contest, results in kept:
        draw(contest, results, folder / KEPT / f"{contest.name}.png")
    (folder / "leaderboard.md").write_text(page(folder), encoding="utf-8")


def page(folder: Path) -> str:
    """The text of leaderboard.md, from the results that the folder keeps."""
    kept = list(_load_reported(folder))
    answers = [sentence for contest, results in kept for sentence in _answers(contest, results)]
    seen = {contest.name for contest, _ in kept}
    unseen = [contest.title for contest in CONTESTS.values() if contest.name not in seen]
    parts = [_INTRODUCTION, "## Answers", "\n".join(answers) or "Nothing is reported yet."]
    if unseen:
        parts.append(f"Declared in `papers/leaderboard/space.py` and not run yet: {'; '.join(unseen)}.")
    for contest, results in kept:
        parts += _contest_part(contest, results)
    return "\n\n".join(parts) + "\n"


def _load_reported(folder: Path) -> Iterator[tuple[Contest, Results]]:
    """Yield contests whose baseline is reported, with their results."""
    for contest in CONTESTS.values():
        results = Results.load(folder / KEPT / f"{contest.name}.json", contest.name)
        results.reported = [run for run in results.reported if run.seed in contest.reported]
        if results.runs(BASELINE, None):
            yield contest, results


def _methods(contest: Contest, results: Results, epsilon: float) -> list[str]:
    """Methods that are reported on all seeds."""
    return [name for name in PRIVATE if len(results.runs(name, epsilon)) == len(contest.reported)]


def _costs(results: Results, runs: dict[int, Reported]) -> np.ndarray:
    """Accuracy that each run lost against the tuned baseline of its seed, [seeds, groups and all]."""
    baseline = results.runs(BASELINE, None)
    pairs = [(baseline[seed].accuracies, run.accuracies) for seed, run in sorted(runs.items())]
    return np.array([np.subtract(before, after) for before, after in pairs])


def _worst_costs(results: Results, runs: dict[int, Reported]) -> np.ndarray:
    """Score of each run, [seeds]."""
    baseline = results.runs(BASELINE, None)
    return np.array(
        [worst_cost(baseline[seed].accuracies, run.accuracies) for seed, run in sorted(runs.items())]
    )


def _points(values: Sequence[float] | np.ndarray, sign: bool = False) -> str:
    """Mean in percentage points, with its interval."""
    mean, low, high = (100 * value for value in mean_interval(values))
    form = "+.2f" if sign else ".2f"
    return f"{mean:{form}} ({low:{form}} to {high:{form}})"


def _against_standard(results: Results, method: str, epsilon: float) -> np.ndarray:
    """Accuracy that the worst group lost beyond its loss under DPSGD, [seeds]; below 0: less."""
    standard: np.ndarray = _worst_costs(results, results.runs(STANDARD, epsilon))
    lost: np.ndarray = _worst_costs(results, results.runs(method, epsilon)) - standard
    return lost


def _answers(contest: Contest, results: Results) -> Iterator[str]:
    for epsilon in contest.epsilons:
        methods = _methods(contest, results, epsilon)
        if STANDARD not in methods:
            continue
        lost = _points(_worst_costs(results, results.runs(STANDARD, epsilon)))
        others = [name for name in methods if name != STANDARD]
        yield (
            f"- **{contest.title}, epsilon {epsilon:g}**: under well-set DPSGD, the worst group loses "
            f"{lost} points. {_compare_with_standard(results, others, epsilon)}"
            f"{_describe_untuned(results, methods, epsilon)}{_describe_exposure(contest, results, epsilon)}"
        )


def _compare_with_standard(results: Results, others: Sequence[str], epsilon: float) -> str:
    """Sentences on methods that beat DPSGD, at a level corrected for the number of methods."""
    if not others:
        return "No other method is compared yet."
    level = 1 - 0.05 / len(others)
    ends = {name: mean_interval(_against_standard(results, name, epsilon), level) for name in others}
    sure = {name: mean for name, (mean, _, high) in ends.items() if high < 0}
    better = [f"{name}, by {-100 * mean:.2f} points" for name, mean in sure.items() if mean <= -MATTERS]
    least = min(ends, key=lambda name: ends[name][0])
    less = -100 * ends[least][0]
    if better:
        said = f"Does a method beat it? Yes: {'; '.join(better)}."
    elif less <= 0:
        said = "Does a method beat it? No: none has a lower mean."
    elif sure:
        by = "; ".join(f"{name}, by {-100 * mean:.2f} points" for name, mean in sure.items())
        said = f"Does a method beat it? Not by what matters: {by}."
    else:
        _, low, high = ends[least]
        said = (
            f"Does a method beat it? None is shown to: {least} is {less:.2f} points lower, and these seeds "
            f"would show {50 * (high - low):.2f} and more."
        )
    worse = [f"{name} (by {100 * mean:.2f})" for name, (mean, low, _) in ends.items() if low > 0]
    return said + (f" Worse beyond that noise: {', '.join(worse)}." if worse else "")


def _describe_untuned(results: Results, methods: Sequence[str], epsilon: float) -> str:
    """Sentence on the mean loss of one random setting, in place of the best of all."""
    means = {
        name: 100 * float(np.mean(scores)) for name in methods if (scores := _scores(results, name, epsilon))
    }
    if STANDARD not in means:
        return ""
    least = min(means, key=lambda name: means[name])
    beside = "the least of all methods" if least == STANDARD else f"{least}, the least, {means[least]:.1f}"
    return (
        f" With one random setting, DPSGD loses {means[STANDARD]:.1f} points on average on the validation "
        f"part of seed {TUNING_SEEDS[0]}; {beside}."
    )


def _scores(results: Results, method: str, epsilon: float) -> list[float]:
    """Score of each setting on the first tuning seed."""
    numbers = results.numbers(method, epsilon)
    return [results.score(method, epsilon, number, TUNING_SEEDS[0]) for number in numbers]


def _ratio(run: Reported) -> float | None:
    """The highest mean epsilon of a group over the lowest; None: not accounted, or all are 0."""
    lowest, highest = min(run.privacy, default=0.0), max(run.privacy, default=0.0)
    return highest / lowest if lowest else math.inf if highest else None


def _describe_exposure(contest: Contest, results: Results, epsilon: float) -> str:
    """Sentence on privacy by group under each method."""
    runs = {name: results.runs(name, epsilon) for name in _methods(contest, results, epsilon)}
    ratios = {
        name: ratio
        for name, by_seed in runs.items()
        if (ratio := _ratio(by_seed[contest.reported[0]])) is not None
    }
    if STANDARD not in ratios:
        return ""
    least, most = (each(ratios, key=lambda name: ratios[name]) for each in (min, max))
    own = runs[STANDARD][contest.reported[0]].privacy
    exposed = results.groups[int(np.argmax(own))]
    return (
        f" Privacy by group: under DPSGD, {exposed} has {ratios[STANDARD]:.2f} times the mean epsilon of the "
        f"least exposed group; among all methods, that is {ratios[least]:.2f} ({least}) to "
        f"{ratios[most]:.2f} ({most})."
    )


def _contest_part(contest: Contest, results: Results) -> Iterator[str]:
    yield f"## {contest.title}"
    yield _facts(contest, results)
    if contest.note:
        yield contest.note
    done = [epsilon for epsilon in contest.epsilons if _methods(contest, results, epsilon)]
    for epsilon in done:
        yield f"### Epsilon {epsilon:g}"
        yield _cost_table(contest, results, epsilon)
        yield from _targets_reached(contest, results, epsilon)
    if done:
        yield "### Everything that was tried"
        yield (
            f"![{contest.title}: overall accuracy and the loss of the worst group, of every setting of "
            f"every method](results/leaderboard/{contest.name}.png)"
        )
        yield (
            f"Each point is a setting at epsilon {done[0]:g} on the validation part of seed "
            f"{TUNING_SEEDS[0]}: overall accuracy, and what the worst group lost. Grey: the others. "
            "Ringed: the one chosen. Open points at an edge lie beyond it. The table gives the loss, "
            "in points, that the best of so many random settings has on average: what a smaller budget would "
            "have reported."
        )
        yield _effort_table(contest, results, done[0])
        yield from _privacy_part(contest, results, done)
    yield from _published_part(contest, results)
    yield "### Settings"
    yield _space_table(contest)
    yield from _chosen_part(contest, results, done)


def _facts(contest: Contest, results: Results) -> str:
    runs = results.runs(BASELINE, None)
    accuracies = np.mean([run.accuracies for run in runs.values()], axis=0)
    named = zip((*results.groups, "all"), accuracies, strict=True)
    reached = ", ".join(f"{name} {value:.4f}" for name, value in named)
    features = f" with {contest.features} features" if contest.features else ""
    count, hours = len(results.tried) + len(results.reported), results.seconds / 3600
    sentences = (
        f"`{contest.source}`{features}, delta {contest.delta:g}, {contest.draws} random settings a method "
        f"and epsilon, {len(runs)} seeds reported ({', '.join(map(str, sorted(runs)))}).",
        f"Without privacy, tuned: {reached}.",
        f"{count} runs in {hours:.1f} hours of one core.",
        *_missing_runs(contest, results),
    )
    return " ".join(sentences)


def _missing_runs(contest: Contest, results: Results) -> Iterator[str]:
    """Sentences on methods and epsilons of the contest that were not run yet."""
    compared = {epsilon: _methods(contest, results, epsilon) for epsilon in contest.epsilons}
    for epsilon, methods in compared.items():
        left = [name for name in PRIVATE if name not in methods]
        if methods and left:
            yield f"Not run yet at epsilon {epsilon:g}: {', '.join(left)}."
    if unseen := [f"{epsilon:g}" for epsilon, methods in compared.items() if not methods]:
        yield f"Epsilon {' and '.join(unseen)}: not run yet."


def _cost_table(contest: Contest, results: Results, epsilon: float) -> str:
    few = len(results.groups) <= 5
    groups = [f"{name} loses" for name in results.groups] if few else ["largest loss"]
    head = ["method", "overall accuracy", *groups, "worst group loses", "against DPSGD"]
    lines = []
    methods = _methods(contest, results, epsilon)
    for method in sorted(methods, key=lambda name: _worst_costs(results, results.runs(name, epsilon)).mean()):
        runs = results.runs(method, epsilon)
        costs, worst = _costs(results, runs), _worst_costs(results, runs)
        means = costs[:, :-1].mean(axis=0)
        shown = [_points(costs[:, place]) for place in range(len(means))]
        if not few:
            shown = [results.groups[int(means.argmax())]]
        overall = 100 * np.mean([run.accuracies[-1] for run in runs.values()])
        against = (
            "" if method == STANDARD else _points(_against_standard(results, method, epsilon), sign=True)
        )
        lines.append([f"`{method}`", f"{overall:.2f}", *shown, _points(worst), against])
    return _markdown(head, lines)


def _targets_reached(contest: Contest, results: Results, epsilon: float) -> Iterator[str]:
    """Sentences on methods that lost nearly nothing in every group, and on right predicted rates."""
    methods = _methods(contest, results, epsilon)
    small = [
        method
        for method in methods
        if _costs(results, results.runs(method, epsilon))[:, :-1].mean(axis=0).max() <= TARGET
    ]
    listed = _list_methods(small, methods)
    text = (
        f"Every group within half a point of its accuracy without privacy, on average over seeds: {listed}."
    )
    if results.runs(methods[0], epsilon)[contest.reported[0]].predicted:
        off = {method: _rate_errors(results.runs(method, epsilon)) for method in methods}
        held = [name for name in methods if max(off[name]) <= _CALIBRATED]
        best = min(methods, key=lambda name: max(off[name]))
        text += (
            " Mean predicted rate within a tenth of what happened in every group: "
            f"{_list_methods(held, methods)} (closest: `{best}`, {100 * max(off[best]):.0f}% off; "
            f"without privacy: {100 * max(_rate_errors(results.runs(BASELINE, None))):.0f}%)."
        )
    yield text


def _list_methods(some: Sequence[str], every: Sequence[str]) -> str:
    if len(some) == len(every):
        return "every method"
    return ", ".join(f"`{name}`" for name in some) or "no method"


def _rate_errors(runs: dict[int, Reported]) -> list[float]:
    """Relative error of predicted rates by group: means over seeds."""
    each = [
        [abs(p - o) / o for p, o in zip(run.predicted[:-1], run.observed[:-1], strict=True)]
        for run in runs.values()
    ]
    return [float(value) for value in np.mean(each, axis=0)]


def _effort_table(contest: Contest, results: Results, epsilon: float) -> str:
    draws = [count for count in (1, 2, 4, 8, 16, 32) if count <= contest.draws]
    head = ["method", *(f"best of {count}" for count in draws), "median"]
    lines = []
    for method in _methods(contest, results, epsilon):
        scores = [100 * score for score in _scores(results, method, epsilon)]
        shown = [f"{expected_best(scores, min(count, len(scores))):.2f}" for count in draws]
        lines.append([f"`{method}`", *shown, f"{np.median(scores):.2f}"])
    return _markdown(head, lines)


def _privacy_part(contest: Contest, results: Results, epsilons: Sequence[float]) -> Iterator[str]:
    """Part of the page on mean epsilons of each group's examples."""
    lines, few = [], len(results.groups) <= 5
    for epsilon in epsilons:
        for method in _methods(contest, results, epsilon):
            run = results.runs(method, epsilon)[contest.reported[0]]
            if run.privacy:
                shown = [f"{value:.2f}" for value in run.privacy]
                if not few:
                    least, most = (int(each(run.privacy)) for each in (np.argmin, np.argmax))
                    shown = [f"{shown[place]} ({results.groups[place]})" for place in (least, most)]
                ratio = _ratio(run)
                over = "–" if ratio is None else f"{ratio:.2f}"
                lines.append([f"{epsilon:g}", f"`{method}`", *shown, over])
    if not lines:
        return
    groups = results.groups if few else ("least exposed group", "most exposed group")
    yield "### Privacy by group"
    yield (
        "Everyone is guaranteed the run's epsilon. Most lose less: the mean epsilon of each group's own "
        f"training examples ([individual.md](../docs/individual.md)) in the run of seed "
        f"{contest.reported[0]}, estimated from norms taken once an epoch. Raw figures, not for release."
    )
    yield _markdown(["epsilon", "method", *groups, "highest over lowest"], lines)


def _published_part(contest: Contest, results: Results) -> Iterator[str]:
    """Part of the page on the cost of published settings at the same epsilon."""
    first, lines = contest.epsilons[0], []
    for method in (BASELINE, *PRIVATE):
        runs = results.runs(method, first, PUBLISHED)
        if runs:
            costs = _costs(results, runs)
            overall = 100 * np.mean([run.accuracies[-1] for run in runs.values()])
            each = [_points(costs[:, place]) for place in range(len(results.groups))]
            lines.append([f"`{method}`", f"{overall:.2f}", *each])
    if lines:
        yield "### Published settings"
        yield (
            f"The settings of `equidp compare {contest.source}`, at the same epsilon ({first:g}) and on the "
            "same seeds. Losses are against the tuned baseline, so that plain SGD as published has one too."
        )
        yield _markdown(["method", "overall accuracy", *(f"{name} loses" for name in results.groups)], lines)


def _space_table(contest: Contest) -> str:
    lines = [
        *(["every private method", f"`{name}`", str(space)] for name, space in contest.common.items()),
        *(["without privacy", f"`{name}`", str(space)] for name, space in contest.baseline.items()),
        *(
            [f"`{method}`", f"`{name}`", str(space)]
            for method, own in contest.own.items()
            for name, space in own.items()
            if method in PRIVATE
        ),
        *(["all", f"`{name}`", str(value)] for name, value in contest.fixed.items()),
    ]
    note = (
        "The learning rate is the `step` over the clipping bound, so that the step says how much noise an "
        "update holds. `bound ratio` gives a second bound as so many times the first. Other settings are the "
        "defaults."
    )
    return f"{note}\n\n{_markdown(['method', 'setting', 'drawn from'], lines)}"


def _chosen_part(contest: Contest, results: Results, epsilons: Sequence[float]) -> Iterator[str]:
    """Part of the page on chosen settings, with a command for each."""
    lines, commands = [], []
    for epsilon in [None, *epsilons]:
        for method in [BASELINE] if epsilon is None else _methods(contest, results, epsilon):
            number = results.choice(method, epsilon, results.numbers(method, epsilon))
            own = results.settings[method][str(number)]
            said = ", ".join(f"{name} {value}" for name, value in own.items() if name not in contest.fixed)
            lines.append(["" if epsilon is None else f"{epsilon:g}", f"`{method}`", said])
            commands.append(contest.command(method, epsilon, own))
    yield "Chosen:"
    yield _markdown(["epsilon", "method", "settings"], lines)
    yield (
        f"The same as commands, with every option that the training follows from and seeds "
        f"{', '.join(map(str, contest.reported))}. Plain SGD, which they train too, has the method's "
        "settings there; what a method loses above is against the first row."
    )
    yield "\n".join(["```console", *commands, "```"])
    yield "Trained by"
    yield "\n".join(f"- `{line}`" for line in results.made)


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def draw(contest: Contest, results: Results, path: Path) -> None:
    """Draw a panel for each method: its settings in colour, others in grey, the chosen one ringed."""
    epsilon = contest.epsilons[0]
    methods = _methods(contest, results, epsilon)
    if not methods:
        return
    clouds = {}
    for method in methods:
        numbers = results.numbers(method, epsilon)
        chosen = results.choice(method, epsilon, numbers)
        order = [chosen, *(number for number in numbers if number != chosen)]
        found = [results.accuracies(method, epsilon, number, TUNING_SEEDS[0]) for number in order]
        overall = [100 * each[-1] for each in found if each is not None]
        lost = [100 * results.score(method, epsilon, number, TUNING_SEEDS[0]) for number in order]
        clouds[method] = np.array([overall, lost])
    every = np.concatenate(list(clouds.values()), axis=1)
    left, top = np.quantile(every[0], 0.15), np.quantile(every[1], 0.85)
    right, bottom = every[0].max(), every[1].min()
    wide, high = right - left, top - bottom
    columns = 3
    lines = -(-len(methods) // columns)
    figure = Figure(figsize=(9, 2.7 * lines + 0.8))
    panels = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, method in zip(panels, methods, strict=False):
        for name in (*(each for each in methods if each != method), method):
            own = name == method
            x, y = np.maximum(clouds[name][0], left), np.minimum(clouds[name][1], top)
            inside = (clouds[name][0] >= left) & (clouds[name][1] <= top)
            colour, size = ("#0072B2", 46) if own else ("#cccccc", 18)
            layer = 2 if own else 1
            axes.scatter(x[inside], y[inside], s=size, color=colour, zorder=layer, linewidths=0)
            axes.scatter(
                x[~inside],
                y[~inside],
                s=size,
                facecolors="none",
                edgecolors=colour,
                zorder=layer,
                clip_on=False,
            )
            if own:
                axes.scatter(
                    x[:1], y[:1], s=190, facecolors="none", edgecolors="#D55E00", linewidths=2.4, zorder=3
                )
        axes.set_title(method, fontsize=17, loc="left")
        axes.tick_params(labelsize=14)
        axes.set_xlim(left - 0.04 * wide, right + 0.06 * wide)
        axes.set_ylim(bottom - 0.08 * high, top + 0.04 * high)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(methods) :]:
        axes.set_visible(False)
    for place in range(len(methods)):
        if place + columns >= len(methods):
            panels[place].xaxis.set_tick_params(labelbottom=True)
    figure.supxlabel("overall accuracy, %", fontsize=17)
    figure.supylabel("worst group loses, points", fontsize=17)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None})
