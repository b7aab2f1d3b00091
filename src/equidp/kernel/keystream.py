"""Random words computed on a GPU: ChaCha20 (RFC 8439) in one Triton kernel."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

_CONSTANT = np.frombuffer(b"expand 32-byte k", dtype="<i4")
_MANY = 2**9
"""Smallest count for which a device is faster than AES on the CPU and a copy (docs/evidence-speed.md)."""


def makes_words(device: torch.device, count: int) -> bool:
    """Return whether to compute this many words on the device: it is faster there, and `is_exact`.

    >>> makes_words(torch.device("cpu"), 2**20)
    False
    """
    return count >= _MANY and is_exact(device)


def keystream(key: bytes, count: int, device: torch.device) -> Tensor:
    """Return 64-bit words, [count], int64, on the device: ChaCha20's keystream from block 0 on, nonce 0.

    Formal guarantee: on a device that `is_exact`, the words are the keystream of RFC 8439, bit for bit. Only
    the key of 32 bytes decides them, so draw a new key for each call. 2^34 words or more are rejected,
    because the counter would wrap around.
    """
    blocks = -(-count // 8)
    if blocks > np.iinfo(np.int32).max:
        raise OverflowError(f"{count:,} words under one key; expected fewer than 2^34.")
    from equidp.kernel import fused_keystream  # imports Triton, which comes with PyTorch for CUDA on Linux

    first = np.concatenate([_CONSTANT, np.frombuffer(key, dtype="<i4"), np.zeros(4, dtype="<i4")])
    words = fused_keystream.blocks_of(torch.from_numpy(first).to(device), blocks)
    return words.reshape(-1).view(torch.int64)[:count]


@lru_cache(maxsize=64)
def is_exact(device: torch.device) -> bool:
    """Return whether a CUDA device computes the same keystream as the library `cryptography`; checked once.

    If a compiler did not wrap integers around, the words would come from a cipher that nobody has studied.
    """
    if device.type != "cuda":
        return False
    key = bytes(range(32))
    for count in (999, 2**20 + 3):  # within the first blocks, and in all parts of a kernel
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))
        try:
            made = keystream(key, count, device).cpu()
        except Exception:  # Triton is not there, or cannot compile here
            return False
        if made.numpy().tobytes() != stream:
            return False
    return True
