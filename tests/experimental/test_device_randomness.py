"""Words made on a device are ChaCha20's, bit for bit."""

from __future__ import annotations

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, strategies as st

from equidp.experimental import device_randomness as module
from equidp.experimental.device_randomness import DeviceRandomness, is_exact, keystream

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
    monkeypatch.setattr(module, "_rotate_left", wrong)
    assert not is_exact(CPU)
    is_exact.cache_clear()


def test_each_draw_of_very_many_words_has_a_key_of_its_own(monkeypatch):
    """On a device that is not the CPU, which "meta" stands for: it holds no values."""
    keys = []
    monkeypatch.setattr(module, "is_exact", lambda device: True)
    monkeypatch.setattr(module, "keystream", lambda key, *_: keys.append(key))
    for _ in range(2):
        DeviceRandomness().words_on(torch.device("meta"), 2**18)
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]
