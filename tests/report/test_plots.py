"""Plots show what the numbers say, with one meaning a colour, for a page and a paper's column."""

from __future__ import annotations

import dataclasses
import itertools
import re
from unittest.mock import Mock

import matplotlib.colors
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

import equidp
from equidp.comparison.sweep import Kind
from equidp.data.dataset import ALL
from equidp.errors import SettingError
from equidp.evaluation.costs import group_gaps
from equidp.evaluation.evaluation import evaluate
from equidp.policies.table import METHODS
from equidp.report import comparison as html
from equidp.report.figures import save_evaluation_figures
from equidp.report.plots import ALL_PLOTS, PLOTS
from equidp.report.plots.choice import best_edge
from equidp.report.plots.evaluated import calibration, reliability
from equidp.report.plots.style import (
    COLUMN,
    GROUP_LOOKS,
    LOOKS,
    OTHER_GROUPS,
    PAGE,
    PLAIN_LOOK,
    Plot,
    draw_plots,
    filled_in,
    group_looks,
    kind_looks,
    method_looks,
)
from equidp.report.summary import summarise
from support.errors import raises_field
from support.made_up import made_up

COSTS = {
    "dpsgd": {"a": 0.02, "b": 0.40},
    "dpsgd-f": {"a": 0.04, "b": 0.05},
    "global-adapt": {"a": 0.1, "b": 0.12},
}


def test_a_title_names_the_metric_and_an_axis_its_unit_too():
    titles = {name: filled_in(plot.title, summarise(made_up(COSTS))) for name, plot in ALL_PLOTS.items()}
    assert titles["accuracy"] == "Accuracy by group"
    assert not any("%" in title or ", points" in title for title in titles.values())
    assert equidp.plot(made_up(COSTS), "accuracy").axes[0].get_xlabel() == "Accuracy, %"


def labelled(axes, label):
    return next(each for each in axes.get_lines() if each.get_label() == label)


def points_of(axes, label):
    """Where the points with this label and error bars are."""
    return next(each for each in axes.containers if each.get_label() == label)[0].get_xdata()


def individual(comparison, error):
    rows = [
        {"method": method, "setting": "", "group": group, "seed": seed, "target_epsilon": 3.0, "epsilon": 3.0,
         "epsilon_with_release": 3.1, "release_epsilon": 0.1, "group_epsilon": 3.0,
         "linear_group_epsilon": 3.0,
         "released_mean": 0.5 + at, "standard_error": error}
        for method in ("dpsgd", "dpsgd-f") for at, group in enumerate("ab") for seed in range(2)
    ]  # fmt: skip
    return dataclasses.replace(comparison, individual=pd.DataFrame(rows))


def test_costs_are_drawn_where_the_figures_are():
    comparison = made_up(COSTS)
    (axes,) = equidp.plot(comparison, "costs").axes
    means = comparison.costs().groupby(["method", "group"])["privacy_cost"].mean()
    for method in COSTS:
        expected = [100 * means[(method, group)] for group in ("a", "b", ALL)]
        assert points_of(axes, method) == pytest.approx(expected)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["a (320)", "b (320)", "all (640)"]


def test_a_choice_shows_every_run_the_means_and_the_edge():
    comparison = made_up(COSTS)
    (axes,) = equidp.plot(comparison, "choice").axes
    gaps = group_gaps(comparison.costs()).query("pair == 'largest'").set_index(["method", "seed"])["cost_gap"]
    accuracy = comparison.results.query("group == 'all'").groupby("method")["accuracy"].mean()
    for method in COSTS:
        mean = labelled(axes, method)
        assert mean.get_xdata() == pytest.approx(100 * gaps[method].mean())
        assert mean.get_ydata() == pytest.approx(100 * accuracy[method])
    runs = [line for line in axes.get_lines() if line.get_alpha() is not None and len(line.get_xdata()) == 5]
    assert len(runs) == len(COSTS)
    assert len(labelled(axes, "edge").get_xdata()) >= 1
    assert labelled(axes, "sgd").get_ydata()[0] == pytest.approx(100 * accuracy["sgd"])


def test_a_ring_marks_the_recommended_method_of_each_epsilon():
    comparison = made_up(COSTS, epsilons=(1.0, 3.0))
    (axes,) = equidp.plot(comparison, "choice").axes
    rings = [line for line in axes.get_lines() if line.get_label() == "recommended"]
    advised = [each for each in comparison.recommendation() if each.method]
    assert len(rings) == len(advised) > 0
    for ring, each in zip(rings, advised, strict=True):
        mean = labelled(axes, f"{each.method} ({each.setting})")
        assert (*ring.get_xdata(), *ring.get_ydata()) == (*mean.get_xdata(), *mean.get_ydata())


def test_the_edge_holds_what_no_other_place_beats():
    places = [(1.0, 70.0), (2.0, 80.0), (2.0, 75.0), (3.0, 79.0), (4.0, 90.0)]
    assert best_edge(places) == [(1.0, 70.0), (2.0, 80.0), (4.0, 90.0)]


def _apart(one, other):
    """Distance of two colours, for someone who tells no red from green (Viénot et al. 1999)."""
    seen = np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]])
    linear = [np.array(matplotlib.colors.to_rgb(colour)) ** 2.2 for colour in (one, other)]
    return np.linalg.norm(np.subtract(*[np.clip(seen @ each, 0, 1) ** (1 / 2.2) for each in linear]))


def test_each_method_has_a_colour_and_marker_and_no_group_has_one_of_them():
    methods = [PLAIN_LOOK, *LOOKS]
    colours = {look.colour for look in methods}
    assert len(colours) == len(methods)
    assert len({look.marker for look in LOOKS}) == len(LOOKS)
    assert colours.isdisjoint(look.colour for look in (*GROUP_LOOKS, OTHER_GROUPS))
    usual = [look.colour for look in methods[:7]]
    assert min(_apart(*pair) for pair in itertools.combinations(usual, 2)) > 0.15
    named = list(dict.fromkeys(look.colour for look in GROUP_LOOKS))
    assert min(_apart(*pair) for pair in itertools.combinations(named, 2)) > 0.15
    assert len({look[::2] for look in GROUP_LOOKS}) == len(GROUP_LOOKS)


def test_a_method_keeps_its_colour_whatever_it_is_compared_with():
    first = list(METHODS)[: len(LOOKS)]
    among = method_looks(first)
    assert all(method_looks([name]) == {name: among[name]} for name in first)
    assert method_looks(["mine:P"])["mine:P"] == method_looks(["sgd", "dpsgd-f", "mine:P"])["mine:P"]
    names = [f"module:Method{at}" for at in range(len(LOOKS))]
    assert len(set(method_looks(names).values())) == len(names)
    assert len(method_looks([*names, "one:More"])) == len(names) + 1


def test_settings_of_a_method_share_its_colour_and_differ_by_marker():
    looks = kind_looks(summarise(made_up(COSTS, epsilons=(1.0, 3.0, 8.0))))
    for method in COSTS:
        own = [look for kind, look in looks.items() if kind.method == method]
        assert {look.colour for look in own} == {method_looks(COSTS)[method].colour}
        assert len({look.marker for look in own}) == 3


def test_baselines_that_differ_in_features_differ_by_marker():
    baselines, private = (Kind("sgd", ""), Kind("sgd", "features=scattering")), (Kind("dpsgd", ""),)
    looks = kind_looks(Mock(kinds=baselines + private, baseline_kinds=baselines, private_kinds=private))
    assert {look.colour for look in looks.values()} == {PLAIN_LOOK.colour, LOOKS[0].colour}
    assert len({looks[kind] for kind in baselines}) == 2
    assert looks[private[0]] == LOOKS[0]


def test_of_many_groups_the_smallest_and_the_highlighted_stand_out():
    looks = group_looks("abcdefgh", {**dict.fromkeys("abcdefgh", 50), "b": 9}, ["d"])
    assert [name for name, look in looks.items() if look != OTHER_GROUPS] == ["b", "d"]


@pytest.mark.parametrize("layout", [PAGE, COLUMN], ids=["page", "column"])
def test_the_lowest_panel_of_each_column_has_the_axis(layout):
    """With four kinds there is an empty place below some panels."""
    figure = PLOTS["loss"].figure(summarise(made_up(COSTS)), layout)
    columns = {}
    for axes in figure.axes:
        place = axes.get_subplotspec()
        columns.setdefault(place.colspan.start, []).append((place.rowspan.start, axes))
    assert len(columns) == layout.columns
    for panels in columns.values():
        *above, (_, lowest) = sorted(panels, key=lambda panel: panel[0])
        assert lowest.get_xlabel() == "epoch"
        assert lowest.xaxis.get_tick_params()["labelbottom"]
        assert not any(axes.get_xlabel() for _, axes in above)


@pytest.mark.soak
@pytest.mark.parametrize("layout", [PAGE, COLUMN], ids=["page", "column"])
@pytest.mark.parametrize("name", ["costs", "choice", "trade_off", "loss"])
def test_axes_keep_most_of_the_width_and_nothing_leaves_the_figure(name, layout):
    """Also with long names: a legend stands above the axes, in as many columns as fit."""
    long = {"my_package.methods:AMethodOfOnesOwn": 0.1, "dpsgd": 0.2, "dpsgd-f": 0.3}
    groups = ("no schooling at all and no income", "b")
    costs = {method: dict.fromkeys(groups, cost) for method, cost in long.items()}
    figure = PLOTS[name].figure(summarise(made_up(costs, epsilons=(1.0, 3.0))), layout)
    figure.draw_without_rendering()
    inside = figure.bbox.padded(2)
    (legend,) = figure.legends
    for part in (legend, *figure.axes):
        box = part.get_tightbbox()
        assert inside.x0 <= box.x0 <= box.x1 <= inside.x1
        assert inside.y0 <= box.y0 <= box.y1 <= inside.y1
    assert not any(legend.get_window_extent().overlaps(axes.get_window_extent()) for axes in figure.axes)
    width = max(axes.get_position().x1 for axes in figure.axes) - min(
        axes.get_position().x0 for axes in figure.axes
    )
    assert width > 0.55


def test_released_means_are_drawn_with_their_errors_within_what_can_happen():
    comparison = individual(made_up(COSTS), 0.4)
    for axes in equidp.plot(comparison, "released").axes:
        ends = np.concatenate([line.get_segments()[0][:, 0] for line in axes.collections])
        error = 0.4 / 2**0.5  # of the mean over two seeds
        assert ends == pytest.approx([0.0, 0.5 + 2 * error, 1.5 - 2 * error, 1.5 + 2 * error])
        assert not axes.texts


def test_released_means_that_noise_hides_have_no_points_but_a_sentence():
    for axes in equidp.plot(individual(made_up(COSTS), 3.0), "released").axes:
        assert [text.get_text() for text in axes.texts] == ["too noisy to compare"]
        assert all(line.get_marker() == "None" for line in axes.get_lines())
        assert all(0 <= end <= 3 for line in axes.collections for end in line.get_segments()[0][:, 0])


def test_unknown_and_empty_figures_are_refused():
    comparison = made_up(COSTS)
    with raises_field(SettingError, "plot", "'cost'", "'costs'"):
        equidp.plot(comparison, "cost")
    with raises_field(SettingError, "plot"):
        equidp.plot(comparison, "trade_off")
    with raises_field(SettingError, "plot"):
        equidp.plot(comparison, "sensitive_noise")
    with raises_field(SettingError, "width"):
        equidp.plot(comparison, width=0)


@pytest.mark.soak
def test_figures_are_vector_files_with_text_at_the_width_of_a_column(tmp_path):
    files = equidp.save_figures(made_up(COSTS), tmp_path / "new" / "figures")
    names = {path.stem for path in files}
    assert names == {"costs", "accuracy", "choice", "loss", "norms", "clipped", "bounds"}
    assert sorted(files) == sorted((tmp_path / "new" / "figures").iterdir())
    for path in files:
        content = path.read_bytes()
        if path.suffix == ".svg":
            assert f'width="{72 * COLUMN.width:g}pt"'.encode() in content
            assert b"global-adapt</text>" in content
        else:
            assert re.search(rb"/MediaBox \[ 0 0 244.8 ", content)
            assert b"/FontFile2" in content
    before = {path: path.read_bytes() for path in files}
    equidp.save_figures(made_up(COSTS), tmp_path / "new" / "figures")
    assert before == {path: path.read_bytes() for path in files}


@pytest.mark.soak
def test_figures_of_raw_data_are_written_only_if_asked_for(tmp_path):
    comparison = individual(made_up(COSTS), 0.1)
    comparison.individual["sensitive_mean"] = 1.0
    assert not [path for path in equidp.save_figures(comparison, tmp_path) if "sensitive" in path.name]
    files = equidp.save_figures(comparison, tmp_path, include_sensitive=True)
    assert {path.name for path in files if "sensitive" in path.name} == {
        "sensitive_epsilon.pdf",
        "sensitive_epsilon.svg",
    }


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with raises_field(SettingError, "path"):
        equidp.save_figures(made_up(COSTS), tmp_path / "file" / "figures")


@pytest.mark.soak
def test_each_figure_of_a_page_is_one_picture():
    page = html.render(made_up(COSTS, epsilons=(1.0, 3.0)))
    assert page.count("<figure") == page.count("<svg") == len(PLOTS)


@pytest.fixture(scope="module")
def evaluated():
    """An evaluation of two classes and groups, whose risks are too low."""
    generator = torch.Generator().manual_seed(0)
    inputs, groups = torch.randn(600, 1, generator=generator), torch.arange(600) % 2
    targets = (torch.rand(600, generator=generator) < torch.sigmoid(inputs[:, 0])).long()
    test = equidp.GroupedDataset(inputs, targets, groups, ("a", "b"), ("no", "yes"))
    model = torch.nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0], [1.0]]))
        model.bias.copy_(torch.tensor([0.0, -1.5]))
    return evaluate(model, test)


def test_predicted_risks_are_drawn_beside_what_happened(evaluated):
    (axes,) = calibration(evaluated, PAGE).axes
    happened, predicted = axes.get_lines()
    table = evaluated.calibration
    assert happened.get_xdata() == pytest.approx(100 * table["observed"])
    assert predicted.get_xdata() == pytest.approx(100 * table["mean_predicted"])
    (intervals,) = axes.collections
    ends = [segment[:, 0] for segment in intervals.get_segments()]
    assert np.array(ends) == pytest.approx(100 * table[["observed_low", "observed_high"]].to_numpy())
    assert "yes" in axes.get_xlabel()


def test_reliability_is_drawn_by_group_within_0_and_100(evaluated):
    (axes,) = reliability(evaluated, PAGE).axes
    assert axes.get_xlim() == axes.get_ylim() == (0, 100)
    for group in "ab":
        part = evaluated.reliability[evaluated.reliability["group"] == group]
        line = next(each for each in axes.containers if each.get_label() == group)[0]
        assert line.get_xdata() == pytest.approx(100 * part["mean_predicted"])
        assert line.get_ydata() == pytest.approx(100 * part["observed"])


@pytest.mark.soak
def test_an_evaluation_is_written_as_figures(evaluated, tmp_path):
    names = {path.name for path in save_evaluation_figures(evaluated, tmp_path)}
    stems = ("accuracies", "calibration", "reliability")
    assert names == {f"{stem}.{kind}" for stem in stems for kind in ("pdf", "svg")}


def test_a_new_plot_is_one_function_and_one_line(monkeypatch):
    def sizes(summary, axis, layout):
        figure = Figure()
        panel = figure.subplots()
        panel.bar(list(summary.sizes()), list(summary.sizes().values()))
        panel.set_ylabel(axis)
        return figure

    monkeypatch.setitem(PLOTS, "sizes", Plot("Sizes", "In training.", "examples", sizes))
    summary = Mock(unit="points", details=[Mock(title="Accuracy")])
    summary.sizes.return_value = {"a": 3, "all": 3}
    (drawn,) = draw_plots([PLOTS["sizes"]], summary)
    assert drawn.title == "Sizes"
    assert "<svg" in drawn.svg
