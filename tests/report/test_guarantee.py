"""A guarantee says no more than its numbers hold."""

from __future__ import annotations

from equidp.report.guarantee import Guarantee, guarantee_sentences, stated_guarantees


def test_epsilon_in_sentences_is_never_below_the_truth():
    for spent in (0.10001, 1.23449, 2.9999, 6.0):
        ((said, delta),) = stated_guarantees(guarantee_sentences(Guarantee(spent, 1e-5))[0])
        assert spent <= said <= spent + 0.001
        assert delta == 1e-5


def test_no_more_is_promised_than_epsilon_and_delta_hold():
    """At epsilon 500 the odds may shift by e^500; with a delta above 1/n, publishing one person counts as
    private."""
    said = {
        epsilon: " ".join(guarantee_sentences(Guarantee(epsilon, 1e-5, examples=1000)))
        for epsilon in (0.5, 3.0, 500.0)
    }
    assert ["reveals hardly anything about whether" in text for text in said.values()] == [True, False, False]
    assert ["can depend strongly on a single" in text for text in said.values()] == [False, False, True]
    assert not any("Warning" in text for text in said.values())
    assert "delta is not below 1/n, n = 1,000" in guarantee_sentences(Guarantee(0.5, 0.01, examples=1000))[-1]


def test_a_guarantee_for_people_is_put_into_words_for_people():
    text = " ".join(guarantee_sentences(Guarantee(3.0, 1e-5, "person", rows=4)))
    assert "for each person in the training data" in text
    assert "example" not in text
