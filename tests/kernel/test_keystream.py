"""Words made on a device are ChaCha20's, bit for bit."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from equidp.kernel import keystream as module, noise
from equidp.kernel.keystream import is_exact, makes_words
from equidp.kernel.noise import SystemRandomness

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
KEY = bytes(range(32))


@pytest.fixture
def untried():
    """No device is known to be exact, or not, before and after."""
    is_exact.cache_clear()
    yield
    is_exact.cache_clear()


def stream_of_the_library(key: bytes, count: int) -> bytes:
    return Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))


def words_of_the_library(key: bytes, count: int, device: torch.device) -> torch.Tensor:
    return torch.frombuffer(bytearray(stream_of_the_library(key, count)), dtype=torch.int64)


def test_a_device_that_computes_otherwise_is_found_out(monkeypatch, untried):
    monkeypatch.setattr(module, "keystream", words_of_the_library)
    assert is_exact(CUDA)
    is_exact.cache_clear()

    def wrong(key, count, device):
        words = words_of_the_library(key, count, device)
        words[-1] ^= 1
        return words

    monkeypatch.setattr(module, "keystream", wrong)
    assert not is_exact(CUDA)


def test_each_draw_of_many_words_has_a_key_of_its_own(monkeypatch):
    """On a device that is not the CPU, which "meta" stands for: it holds no values."""
    keys = []
    monkeypatch.setattr(module, "is_exact", lambda device: True)
    monkeypatch.setattr(noise, "keystream", lambda key, *_: keys.append(key))
    for _ in range(2):
        SystemRandomness().words_on(torch.device("meta"), 2**9)
    assert [len(key) for key in keys] == [32, 32]
    assert keys[0] != keys[1]


@pytest.mark.parametrize(
    ("count", "exact", "expected"), [(2**9, True, True), (2**9, False, False), (2**9 - 1, True, False)]
)
def test_a_device_makes_words_where_that_is_faster_and_exact(monkeypatch, count, exact, expected):
    monkeypatch.setattr(module, "is_exact", lambda device: exact)
    assert makes_words(torch.device("meta"), count) is expected


def test_one_compiled_kernel_makes_every_number_of_words():
    """Triton would compile another for numbers that 16 divides, which `is_exact` does not compare."""
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    from equidp.kernel.fused_keystream import _fill

    assert [each.name for each in _fill.params if each.do_not_specialize] == ["blocks"]


_FUSED = """
import sys
import torch
from equidp.kernel.keystream import keystream

for key, count in zip(sys.argv[1::2], sys.argv[2::2]):
    words = keystream(bytes.fromhex(key), int(count), torch.device("cpu"))
    sys.stdout.buffer.write(words.numpy().tobytes())
"""


@pytest.mark.soak
def test_the_keystream_is_that_of_the_library_and_of_the_standard():
    """By Triton's interpreter, which is chosen before the kernel is made; on a GPU `is_exact` compares. RFC
    8439, appendix A.1, test vector 1: key, nonce and counter of zeros."""
    pytest.importorskip("triton", reason="Triton is for Linux alone")
    made_of = (KEY, 2051), (bytes(range(224, 256)), 1), (bytes(32), 8)
    made = subprocess.run(
        [sys.executable, "-c", _FUSED, *(each for key, count in made_of for each in (key.hex(), str(count)))],
        capture_output=True,
        check=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert made.stdout == b"".join(stream_of_the_library(key, count) for key, count in made_of)
    expected = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert stream_of_the_library(bytes(32), 8)[:32].hex() == expected
