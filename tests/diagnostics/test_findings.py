"""Findings follow from the table alone, as far as its standard errors support them."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from equidp.diagnostics.findings import average_column, find_causes as findings

PARTS = ("direction", "magnitude", "noise")


def table(
    groups: dict[str, tuple[float, ...]],
    *,
    error: float = 0.001,
    steps=(0, 10, 20),
    seeds=(0,),
    moved=0.0,
    eigenvalue=1.0,
):
    """Each group's direction, magnitude and noise, the same at all steps, with equal standard errors.

    In the other split, `moved` of the magnitude's part is the direction's.
    """
    rows = []
    for seed in seeds:
        for step in steps:
            for name, parts in groups.items():
                row = {"seed": seed, "step": step, "epoch": step / 10, "group": name}
                shift = {"direction_alternative": moved, "magnitude_alternative": -moved}
                named = dict(zip(PARTS, parts, strict=True))
                named |= {name: named[name.split("_")[0]] + by for name, by in shift.items()}
                for part, value in named.items():
                    row |= {f"sensitive_{part}": value, f"sensitive_{part}_se": error}
                row |= {"learning_rate": 0.5, "sensitive_largest_eigenvalue": eigenvalue}
                row |= {"sensitive_excess": sum(parts), "sensitive_excess_se": error * math.sqrt(3)}
                rows.append(row)
    return pd.DataFrame(rows)


def test_a_clear_cause_is_named_with_its_share_and_what_addresses_it():
    assert findings(table({"2": (0.01, 0.02, 0.0), "8": (0.83, 0.13, 0.04)})) == [
        "Group 8 loses most: 1 of loss a step, from the start.",
        "83% of that comes from gradients turned by clipping; a higher bound, or one scale for all "
        "(global-adapt), addresses that.",
        "Changed lengths of gradients add 13% and noise adds 4%.",
    ]


def test_splits_that_disagree_on_the_cause_name_none():
    sentences = findings(table({"2": (0.0, 0.0, 0.0), "8": (0.03, 0.97, 0.0)}, moved=0.96))
    assert sentences[1:] == [
        "At the length that clipping leaves, 3% of that comes from turned gradients, and at full length "
        "99%: turned gradients and changed lengths cannot be distinguished here, so look at both splits, or "
        "ablate."
    ]


def test_no_group_is_named_within_the_errors():
    assert findings(table({"a": (0.5, 0, 0), "b": (0.48, 0, 0)}, error=0.02)) == [
        "Clipping and noise cost loss, but no group clearly loses most of it in the diagnosed steps."
    ]
    assert findings(table({"a": (0.02, 0, 0), "b": (-0.5, 0, 0)}, error=0.02)) == [
        "No group clearly loses by clipping and noise in the diagnosed steps."
    ]


def test_no_cause_is_named_within_the_errors():
    sentences = findings(table({"a": (0.5, 0.48, 0), "b": (0, 0, 0)}, error=0.02))
    assert sentences[1:] == ["The standard errors do not show which cause is the largest."]
    assert not any("noise" in sentence for sentence in sentences)


def test_the_epoch_since_which_a_group_loses_most_is_said():
    early = table({"a": (0.3, 0, 0), "b": (0.2, 0, 0)}, steps=(0, 10))
    late = table({"a": (0.1, 0, 0), "b": (0.9, 0, 0)}, steps=(20, 30))
    assert findings(pd.concat([early, late]))[0].endswith("always the most since epoch 2.")
    # Once, at the last of the steps, is no tendency.
    last = table({"a": (0.1, 0, 0), "b": (0.9, 0, 0)}, steps=(20,))
    assert findings(pd.concat([early, last]))[0] == "Group b loses most: 0.433 of loss a step."


def test_errors_of_steps_add_up_and_seeds_that_differ_by_more_count():
    equal = average_column(table({"a": (0.3, 0, 0)}, error=0.3, steps=range(9), seeds=(0, 1)), "direction")[
        "a"
    ]
    assert equal.mean == pytest.approx(0.3)
    assert equal.error == pytest.approx(0.3 / math.sqrt(18))
    apart = pd.concat([table({"a": (0.1, 0, 0)}), table({"a": (0.5, 0, 0)}, seeds=(1,))])
    assert average_column(apart, "direction")["a"].error == pytest.approx(0.2)
    assert average_column(apart.drop(columns="seed"), "direction")["a"].error < 0.01


def test_steps_beyond_the_region_of_second_order_terms_are_cautioned_of():
    steps = [table({"a": (0.3, 0, 0)}, steps=(0,)), table({"a": (0.3, 0, 0)}, steps=(10,), eigenvalue=5.0)]
    assert findings(pd.concat(steps))[-1].startswith("Caution: in 1 of 2 diagnosed steps the learning rate")
