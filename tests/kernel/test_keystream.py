"""Words made on a device are ChaCha20's, bit for bit, and become the draws that the CPU makes of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, strategies as st

from equidp.kernel import keystream as module
from equidp.kernel.keystream import is_exact, keystream
from equidp.kernel.noise import Randomness, SystemRandomness, _quantiles, doubled, exact_place

CPU = torch.device("cpu")


@given(key=st.binary(min_size=32, max_size=32), count=st.integers(0, 3000))
def test_the_keystream_is_that_of_the_library(key, count):
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))
    assert keystream(key, count, CPU).numpy().tobytes() == stream


def test_the_keystream_is_that_of_the_standard():
    """RFC 8439, appendix A.1, test vector 1: key, nonce and counter of zeros."""
    expected = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert keystream(bytes(32), 8, CPU).numpy().tobytes()[:32].hex() == expected


def test_more_words_than_the_counter_counts_are_refused():
    with pytest.raises(OverflowError, match="fewer than 2\\^34"):
        keystream(bytes(32), 2**34, CPU)


@pytest.mark.parametrize("wrong", [lambda words, by: words << by, lambda words, by: words])
def test_a_device_that_computes_otherwise_is_found_out(monkeypatch, wrong):
    is_exact.cache_clear()
    assert is_exact(CPU)
    is_exact.cache_clear()
    monkeypatch.setattr(module, "_rotated", wrong)
    assert not is_exact(CPU)
    is_exact.cache_clear()


def test_each_draw_of_very_many_words_has_a_key_of_its_own(monkeypatch):
    """On a device that is not the CPU, which "meta" stands for: it holds no values."""
    keys = []
    monkeypatch.setattr("equidp.kernel.noise.is_exact", lambda device: True)
    monkeypatch.setattr("equidp.kernel.noise.keystream", lambda key, *_: keys.append(key))
    for _ in range(2):
        SystemRandomness().words_on(torch.device("meta"), 2**18)
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("word", [-(2**63), -(2**63) + 2**20, -1, 0, 1, 2**53 + 1, 2**63 - 2**40, 2**63 - 1])
def test_a_device_makes_the_same_draws_of_words_as_the_cpu(word):
    class Given(Randomness):
        def words(self, count):
            return np.full(count, word)

    on_the_cpu = Given().normal(3, deviation=2.5)
    assert torch.equal(_quantiles(Given().words_on(CPU, 3), 2.5), on_the_cpu)


@pytest.mark.parametrize("error", [TypeError, RuntimeError])
def test_a_device_without_float64_leaves_sums_to_the_cpu(monkeypatch, error):
    def refused(*_, **given):
        raise error("Cannot convert a MPS Tensor to float64 dtype")

    exact_place.cache_clear()
    monkeypatch.setattr(torch, "zeros", refused)
    assert exact_place(torch.device("mps")) == CPU
    exact_place.cache_clear()


def test_numbers_are_doubled_exactly():
    assert torch.equal(doubled(torch.tensor([0.1, 2.0])), torch.tensor([0.1, 2.0]).to(torch.float64))
