"""Random words made on a GPU: ChaCha20 (RFC 8439), by one kernel of Triton or from operations on tensors."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

_CONSTANT = np.frombuffer(b"expand 32-byte k", dtype="<i4")
_WORDS = 8
"""Words of 64 bits in a block."""
_MANY, _VERY_MANY = 2**9, 2**19
"""Words from which on a device is faster than AES on the CPU and a copy: by one kernel, and by 600
operations one after another (docs/evidence-gpu.md)."""


def makes_words(device: torch.device, count: int) -> bool:
    """Return whether so many words should be made on this device: it is faster there, and `is_exact`.

    >>> makes_words(torch.device("cpu"), 2**20)
    False
    """
    if device.type == "cpu" or count < _MANY or (count < _VERY_MANY and not _is_fused(device)):
        return False
    return is_exact(device)


def keystream(key: bytes, count: int, device: torch.device) -> Tensor:
    """Return words of 64 bits, [count], int64, on the device: ChaCha20's keystream from block 0 on, nonce 0.

    Formal guarantee: bit for bit what RFC 8439 says, on a device that `is_exact`. Nothing but the key decides
    it, and nothing is kept.

    | case | result |
    | --- | --- |
    | count = 0 | none |
    | a key that was used before | the same words: draw a key for each call |
    | 2^34 words and more | the counter of 32 bits would wrap around: OverflowError |

    Args:
        key: 32 bytes.
        count: how many words.
        device: any with integers of 32 bits.

    >>> keystream(bytes(32), 1, torch.device("cpu"))
    tensor([-8053014886254331786])
    """
    blocks = -(-count // _WORDS)
    if blocks > np.iinfo(np.int32).max:
        raise OverflowError(f"{count:,} words under one key; expected fewer than 2^34.")
    first = np.concatenate([_CONSTANT, np.frombuffer(key, dtype="<i4"), np.zeros(4, dtype="<i4")])
    start = torch.from_numpy(first).to(device)
    if blocks and _is_fused(device):
        from equidp.kernel import fused_keystream

        words = fused_keystream.blocks_of(start, blocks)
    else:
        words = _blocks_of(start, blocks)
    return words.reshape(-1).view(torch.int64)[:count]


def _blocks_of(start: Tensor, blocks: int) -> Tensor:
    """Return blocks of the keystream, [blocks, 16], int32, that follow from the state of the first, [16]."""
    states = start.unsqueeze(1).repeat(1, blocks)
    states[12] = torch.arange(blocks, dtype=torch.int32, device=start.device)
    a, b, c, d = states.view(4, 4, blocks).unbind()
    for _ in range(10):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    return (torch.cat([a, b, c, d]) + states).t()


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Four quarter rounds side by side: of the four columns of each block, or of its diagonals."""
    for first, second in ((16, 12), (8, 7)):
        a = a + b
        d = _rotate_left(d ^ a, first)
        c = c + d
        b = _rotate_left(b ^ c, second)
    return a, b, c, d


def _rotate_left(words: Tensor, by: int) -> Tensor:
    """Rotate words of 32 bits to the left. Shifts to the right copy the sign, which the mask removes."""
    return (words << by) | ((words >> (32 - by)) & ((1 << by) - 1))


@lru_cache(maxsize=64)
def _is_fused(device: torch.device) -> bool:
    """Return whether Triton, which comes with PyTorch for CUDA on Linux, makes the words by one kernel."""
    if device.type != "cuda":
        return False
    try:
        from equidp.kernel import fused_keystream

        fused_keystream.blocks_of(torch.zeros(16, dtype=torch.int32, device=device), 1)
    except Exception:  # Triton is not there, or cannot compile here
        return False
    return True


@lru_cache(maxsize=64)
def is_exact(device: torch.device) -> bool:
    """True where the device computes the same keystream as the library `cryptography`; tried once.

    Integers that overflow must wrap around, and shifts move every bit: a device, or a compiler, that does
    otherwise would draw words from a cipher that nobody has studied. One that fails makes none.
    """
    key = bytes(range(32))
    for count in (999, 2**20 + 3):  # within the first blocks, and in all parts of a kernel
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))
        try:
            made = keystream(key, count, device).cpu()
        except RuntimeError:  # an operation that the device lacks, say
            return False
        if made.numpy().tobytes() != stream:
            return False
    return True
