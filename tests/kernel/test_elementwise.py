"""A rule that is applied to all examples at once gives each what it gives it alone, or is not applied so."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from equidp.kernel.bounding import each_alone, each_at_once
from equidp.kernel.elementwise import _CASTS, _FUNCTIONS, _MADE_LIKE, Column, apply_elementwise
from equidp.kernel.policy import Setting
from equidp.policies.methods import make_policy
from equidp.policies.table import METHODS

NORMS = torch.tensor([0.0, 0.5, 3.0, 1e30, math.inf, math.nan])
GROUPS = torch.tensor([0, 1, 2, 0, 1, 2])
KEPT: list[Any] = []
LISTED = (*_FUNCTIONS, *_CASTS, *_MADE_LIKE)


def tables() -> tuple[Tensor, Tensor, Tensor]:
    """A state: a number, one in float64, and a number for each group."""
    return torch.tensor(1.5), torch.tensor(2.5, dtype=torch.float64), torch.tensor([1.0, 2.0, 4.0])


def keep_and_mix(state: Any, norm: Any, group: Any) -> Any:
    KEPT.append(norm)
    return norm / KEPT[0]


def keep_and_return(state: Any, norm: Any, group: Any) -> Any:
    KEPT.append(norm)
    return KEPT[-2] if len(KEPT) > 1 else None


def read_by_size(state: Any, norm: Any, group: Any) -> Any:
    return norm if norm.dim() == 0 else norm.sum()


def hide_in_a_number(state: Any, norm: Any, group: Any) -> Any:
    torch.abs(norm, out=state[0])
    return norm * state[0].sum()


ELEMENTWISE = {
    "clip": lambda state, norm, group: (1.5 / norm).clamp(max=1.0),
    "operators": lambda state, norm, group: -abs(2 + norm) * 3 - (4 - norm) / 2**norm + norm**2,
    "comparisons": lambda state, norm, group: torch.where((norm > 1) & ~(norm >= 4) | (group == 2), 2.0, 0.0),
    "functions": lambda state, norm, group: torch.minimum(norm.tanh().sqrt(), torch.exp(-norm)),
    "not numbers": lambda state, norm, group: norm.log().nan_to_num(nan=7.0, posinf=2.0, neginf=-2.0),
    "casts": lambda state, norm, group: norm.double().float() + group.to(norm.dtype),
    "of two types": lambda state, norm, group: norm * group,
    "a number of the state": lambda state, norm, group: state[0] / norm.clamp_min(state[0]),
    "a table": lambda state, norm, group: state[2][group] / norm,
    "made alike": lambda state, norm, group: torch.full_like(norm, 3.0) + torch.ones_like(norm),
    "a row": lambda state, norm, group: (norm > state[0]).unsqueeze(0),
    "a cell": lambda state, norm, group: one_hot(group + 3 * (norm > 1).long(), 6),
}
OTHERS = {
    "a sum": lambda state, norm, group: norm / norm.sum(),
    "a mean by torch": lambda state, norm, group: norm - torch.mean(norm),
    "an order": lambda state, norm, group: torch.sort(norm).values,
    "neighbours": lambda state, norm, group: norm.roll(1),
    "the first": lambda state, norm, group: norm[0],
    "the size": read_by_size,
    "a branch": lambda state, norm, group: norm if norm > 1 else 2 * norm,
    "a number": lambda state, norm, group: norm * float(norm),
    "an array": lambda state, norm, group: norm * norm.numpy().max(),
    "a copy": lambda state, norm, group: norm * torch.tensor(norm).mean(),
    "as a tensor": lambda state, norm, group: norm * torch.as_tensor(norm).mean(),
    "its data": lambda state, norm, group: norm * norm.data,
    "joined": lambda state, norm, group: torch.stack([norm, norm]).sum(),
    "in place": lambda state, norm, group: norm.mul_(2.0),
    "into the state": lambda state, norm, group: state[0].copy_(norm),
    "into a number": hide_in_a_number,
    "from before": keep_and_mix,
    "one from before": keep_and_return,
    "sums up to it": lambda state, norm, group: norm.cumsum(0),
    "shares": lambda state, norm, group: torch.softmax(norm, 0),
    "from the end": lambda state, norm, group: norm.flip(0),
    "places that hold": lambda state, norm, group: torch.where(norm > 1)[0],
    "a mask of a table": lambda state, norm, group: state[2][norm > 1],
    "several numbers beside": lambda state, norm, group: torch.minimum(norm, torch.ones(6)),
    "another type beside": lambda state, norm, group: norm * state[1],
    "a row that is summed": lambda state, norm, group: norm.unsqueeze(0).sum(),
    "cells without a number": lambda state, norm, group: one_hot(group),
    "no column": lambda state, norm, group: torch.ones(()),
    "none": lambda state, norm, group: None,
}


@pytest.mark.parametrize("rule", ELEMENTWISE.values(), ids=ELEMENTWISE)
def test_an_elementwise_rule_gives_each_example_what_it_gives_it_alone(rule):
    found = apply_elementwise(rule, tables(), (NORMS, GROUPS))
    alone = torch.vmap(lambda *example: rule(tables(), *example))(NORMS.clone(), GROUPS.clone())
    torch.testing.assert_close(found, alone, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore:This overload of add is deprecated")
@pytest.mark.parametrize("name", LISTED)
def test_a_listed_function_reads_the_numbers_of_one_example_alone(name):
    """Whatever it is given beside a column: nothing, a number, a place or another column."""
    by_torch = None if name in _CASTS else getattr(torch, name, None)
    function = by_torch or (lambda norm, *given: getattr(norm, name)(*given))
    numbers, tried = torch.tensor([0.3, 2.0, 0.7, 0.7]), 0
    for beside in ((), (0,), (0.5,), (0.2, 0.9), (numbers.flip(0),), (numbers.flip(0), numbers)):
        for column in (numbers, numbers > 0.5):
            examples = (column, *(each for each in beside if isinstance(each, Tensor)))

            def rule(state: Any, norm: Any, *others: Any, beside: tuple[Any, ...] = beside) -> Any:
                left = iter(others)
                return function(norm, *(next(left) if isinstance(each, Tensor) else each for each in beside))

            found = apply_elementwise(rule, (), examples)
            if found is not None:
                alone = [rule((), *example) for example in zip(*examples, strict=True)]
                torch.testing.assert_close(found, torch.stack(alone), rtol=1e-6, atol=0, equal_nan=True)
                tried += 1
    assert tried


@pytest.mark.parametrize("rule", OTHERS.values(), ids=OTHERS)
def test_any_other_rule_is_not_applied_to_all_at_once(rule):
    KEPT.clear()
    for _ in range(2):
        found = apply_elementwise(rule, copy.deepcopy(tables()), (NORMS.clone(), GROUPS.clone()))
    assert found is None


@pytest.mark.parametrize("count", [1, 2])
def test_a_rule_that_mixes_or_branches_is_refused_whatever_the_number_of_examples(count):
    for name in ("the size", "in place", "a branch"):
        assert apply_elementwise(OTHERS[name], tables(), (NORMS[:count], GROUPS[:count])) is None


def test_what_is_not_elementwise_is_asked_for_one_example_at_a_time():
    rule = OTHERS["another type beside"]
    expected = each_alone(lambda state, *example: rule(tables(), *example), (), NORMS, GROUPS)
    found = each_at_once(lambda state, *example: rule(tables(), *example), (), NORMS, GROUPS)
    assert found.dtype == expected.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_a_column_shows_no_number():
    column = Column(NORMS, object())
    assert "0.5" not in f"{column} {column!r}"
    for read in (float, int, len, list, bool):
        with pytest.raises(Exception, match=r".*"):
            read(column)


@pytest.mark.parametrize("name", METHODS)
def test_weights_of_every_method_are_elementwise(name):
    """Otherwise a step of a small model takes a tenth more."""
    policy = make_policy(name, {"clipping_bound": 1.0, "strict_bound": 2.0})
    state = policy.init(Setting(2, 5.0, 1.0, 10))
    assert apply_elementwise(policy.weight, state, (NORMS, GROUPS % 2)) is not None
