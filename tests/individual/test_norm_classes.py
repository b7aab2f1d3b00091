"""Histories counted by class are those counted example by example."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.testing import assert_array_equal

from equidp.individual.histories import Histories
from equidp.individual.norm_classes import ByNorm, EachAlone

N, GROUPS = 7, 2
GROUP_OF = np.array([0, 1, 0, 1, 1, 0, 0])
NORMS = st.one_of(
    st.just(0.0), st.just(np.nan), st.sampled_from([0.3, 0.3001, 2.0, 1e-30, 1e30]), st.floats(0, 9)
)


def rounded_up(norms):
    mantissa, exponent = np.frexp(norms.astype(np.float32))
    return np.ldexp(np.ceil(mantissa * 512) / 512, exponent).astype(float)


@given(data=st.data())
def test_by_norm_counts_as_each_alone_would(data):
    """Norms taken of all and of some, steps, reports in between: the same counts, under shares that change
    from step to step."""
    alone, shared = Histories(N, 0.25), Histories(N, 0.25)
    each, classes = EachAlone(alone, GROUP_OF), ByNorm(shared, GROUP_OF, GROUPS)
    for step in range(data.draw(st.integers(1, 8))):
        action = data.draw(st.sampled_from(["all", "some", "settle", "nothing"]))
        if action == "all":
            norms = np.array(data.draw(st.lists(NORMS, min_size=N, max_size=N)))
            each.take(rounded_up(norms))
            classes.take(norms)
        elif action == "some":
            some = np.array(data.draw(st.lists(st.integers(0, N - 1), unique=True)), dtype=np.int64)
            norms = np.array(data.draw(st.lists(NORMS, min_size=len(some), max_size=len(some))))
            each.take(rounded_up(norms), some)
            classes.take(norms, some)
        elif action == "settle":
            classes.settle()
        for one, histories in ((each, alone), (classes, shared)):
            shares = one.norms / (1.0 + step * one.groups + one.norms)
            one.count(histories.cells(shares))
    classes.settle()
    assert_array_equal(shared.counts, alone.counts)


@pytest.mark.parametrize("make", [EachAlone, partial(ByNorm, num_groups=2)], ids=["alone", "by norm"])
def test_steps_of_some_examples_count_for_them_alone(make):
    histories = Histories(4, 0.5)
    classes = make(histories, np.array([0, 1, 1, 0]))
    for examples, norms, steps in (([3], [0.5], 3), ([0], [1.0], 4)):
        classes.take(np.zeros(4))
        classes.take(np.array(norms), np.array(examples))
        for _ in range(steps):
            classes.count(histories.cells(classes.norms))
    classes.settle()
    assert histories.counts[:, 1:].tolist() == [[0, 4], [0, 0], [0, 0], [3, 0]]


def test_norms_that_are_alike_share_a_class_and_are_not_understated():
    classes = ByNorm(Histories(4, 0.1), np.zeros(4, dtype=np.int64), 1)
    norms = np.array([1.0, 1.003, 1.0031, 1.01])
    classes.take(norms)
    held = classes.norms[classes.rows]
    assert (held >= norms).all()
    assert (held <= norms * 1.004).all()
    assert len(set(classes.rows)) == 3


@pytest.mark.parametrize("norm", [np.inf, 3e38])
def test_a_norm_beyond_all_others_is_one_too(norm):
    classes = ByNorm(Histories(1, 0.1), np.zeros(1, dtype=np.int64), 1)
    classes.take(np.array([norm]))
    assert classes.norms[classes.rows[0]] >= norm
