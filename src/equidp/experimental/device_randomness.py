"""Random words made on a GPU: ChaCha20 (RFC 8439) from operations on tensors."""

from __future__ import annotations

import os
from functools import lru_cache

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

from equidp.kernel.noise import SystemRandomness

_VERY_MANY = 2**18
"""Words; for fewer, a GPU would wait longer for 500 small operations than for AES on the processor."""

_CONSTANT = np.frombuffer(b"expand 32-byte k", dtype="<i4")
_WORDS = 8
"""Words of 64 bits in a block."""


class DeviceRandomness(SystemRandomness):
    """Cryptographic draws for release, very many of which are made on the device that uses them.

    Guarantee: that of `SystemRandomness`, but that 2^18 words and more on a device such as a GPU are the
    keystream of ChaCha20, made there, under a key of os.urandom for this call alone. A device that computes
    otherwise than the library `cryptography` (`is_exact`) gets the words of the processor.

    Args:
        owned: generator objects of the user's code that `for_model` fills as well.

    Example:
        >>> import torch
        >>> from equidp.experimental import DeviceRandomness
        >>> DeviceRandomness().normal(3, torch.device("cpu")).shape  # Trainer(randomness=...) takes it
        torch.Size([3])
    """

    def words_on(self, device: torch.device, count: int) -> Tensor:
        if device.type == "cpu" or count < _VERY_MANY or not is_exact(device):
            return super().words_on(device, count)
        return keystream(os.urandom(32), count, device)


def keystream(key: bytes, count: int, device: torch.device) -> Tensor:
    """Returns words of 64 bits, [count], int64, on the device: ChaCha20's keystream from block 0 on, nonce 0.

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
    start = torch.from_numpy(first).to(device).unsqueeze(1).repeat(1, blocks)
    start[12] = torch.arange(blocks, dtype=torch.int32, device=device)
    a, b, c, d = start.view(4, 4, blocks).unbind()
    for _ in range(10):
        a, b, c, d = _quarter_rounds(a, b, c, d)
        a, b, c, d = _quarter_rounds(a, b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0))
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    mixed = torch.cat([a, b, c, d]) + start
    return mixed.t().reshape(-1).view(torch.int64)[:count]


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
def is_exact(device: torch.device) -> bool:
    """True where the device computes the same keystream as the library `cryptography`; tried once.

    Integers that overflow must wrap around, and shifts move every bit: a device, or a compiler, that does
    otherwise would draw words from a cipher that nobody has studied.
    """
    key, count = bytes(range(32)), 999
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * count))
    return keystream(key, count, device).cpu().numpy().tobytes() == stream
