"""Words made on a device are ChaCha20's, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, strategies as st

from equidp.kernel import keystream as module, noise
from equidp.kernel.keystream import is_exact, keystream, makes_words
from equidp.kernel.noise import SystemRandomness

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


def test_a_device_that_fails_makes_no_words(monkeypatch):
    def fails(words, by):
        raise NotImplementedError("no shifts here")

    monkeypatch.setattr(module, "_rotate_left", fails)
    is_exact.cache_clear()
    assert not is_exact(CPU)
    is_exact.cache_clear()


def test_one_compiled_kernel_makes_every_number_of_words():
    """Triton would compile another for numbers that 16 divides, which `is_exact` does not compare."""
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    from equidp.kernel.fused_keystream import _fill

    assert [each.name for each in _fill.params if each.do_not_specialize] == ["blocks"]


def test_each_draw_of_very_many_words_has_a_key_of_its_own(monkeypatch):
    """On a device that is not the CPU, which "meta" stands for: it holds no values."""
    keys = []
    monkeypatch.setattr(module, "is_exact", lambda device: True)
    monkeypatch.setattr(noise, "keystream", lambda key, *_: keys.append(key))
    for _ in range(2):
        SystemRandomness().words_on(torch.device("meta"), 2**19)
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("count", "fused", "exact", "expected"),
    [
        (2**9, True, True, True),
        (2**9, True, False, False),
        (2**9 - 1, True, True, False),
        (2**19, False, True, True),
        (2**19, False, False, False),
        (2**19 - 1, False, True, False),
    ],
)
def test_a_device_makes_words_where_that_is_faster_and_exact(monkeypatch, count, fused, exact, expected):
    monkeypatch.setattr(module, "_is_fused", lambda device: fused)
    monkeypatch.setattr(module, "is_exact", lambda device: exact)
    assert makes_words(torch.device("meta"), count) is expected
    assert not makes_words(CPU, count)


_FUSED = """
import sys
import torch
from equidp.kernel import keystream

keystream._is_fused = lambda device: True
key, count = bytes(range(32)), int(sys.argv[1])
sys.stdout.buffer.write(keystream.keystream(key, count, torch.device("cpu")).numpy().tobytes())
"""


@pytest.mark.parametrize("count", [1, 8, 2051])
def test_the_fused_keystream_is_that_of_the_library(count):
    """By Triton's interpreter, which is chosen before the kernel is made; on a GPU `is_exact` compares."""
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    command = [sys.executable, "-c", _FUSED, str(count)]
    made = subprocess.run(
        command, capture_output=True, check=True, env={**os.environ, "TRITON_INTERPRET": "1"}
    )
    expected = Cipher(algorithms.ChaCha20(bytes(range(32)), bytes(16)), None).encryptor()
    assert made.stdout == expected.update(bytes(8 * count))
