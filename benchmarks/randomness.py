"""Time of one draw of noise, by the source of its random words and by the number of draws.

    python benchmarks/randomness.py [--device cuda] [--rounds 9]

AES is words of AES-256 in counter mode from the CPU, copied to the device; ChaCha20 is words made on
the device by operations on tensors, and "fused" by one kernel of Triton. equidp takes what is fastest
(`equidp.kernel.keystream.makes_words`). The device's own generator, which is not cryptographic and which
equidp never uses for noise, is a reference. Noise is in float64, as the kernel draws it, in blocks of at most
2^22; medians over rounds in which sources take turns.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from unittest import mock

import torch
from measure import step_seconds
from torch import Tensor

from equidp.kernel import keystream
from equidp.kernel.noise import Randomness, SystemRandomness
from equidp.training.device import chosen_device

_BLOCK = 2**22
COUNTS = (82, 10_000, 100_000, 500_000, 2_000_000, 10_000_000, 110_000_000)


class Aes(SystemRandomness):
    def words_on(self, device: torch.device, count: int) -> Tensor:
        return Randomness.words_on(self, device, count)


class ChaCha(SystemRandomness):
    """Words made on the device, by one kernel or by operations on tensors."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self._fused = fused

    def words_on(self, device: torch.device, count: int) -> Tensor:
        if self._fused:
            return keystream.keystream(os.urandom(32), count, device)
        with mock.patch.object(keystream, "_is_fused", return_value=False):
            return keystream.keystream(os.urandom(32), count, device)


def draw(source: Randomness, count: int, device: torch.device) -> None:
    for start in range(0, count, _BLOCK):
        source.normal(min(_BLOCK, count - start), device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 or auto")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    device = chosen_device(asked.device)
    sources = {"AES": Aes(), "ChaCha20": ChaCha(False)}
    if keystream._is_fused(device):
        sources["fused"] = ChaCha(True)
    sources["chosen"] = SystemRandomness()
    print(f"exact: {keystream.is_exact(device)}; ms of one draw:")
    print(f"draws | {' | '.join(sources)} | the device's own generator")
    for count in COUNTS:
        draws = {name: partial(draw, source, count, device) for name, source in sources.items()}
        draws["own"] = partial(torch.randn, count, dtype=torch.float64, device=device)
        rounds = 3 if count > 2_000_000 else asked.rounds
        seconds, _ = step_seconds(draws, "own", rounds=rounds, device=device)
        print(f"{count:,} | " + " | ".join(f"{1000 * seconds[name]:.3g}" for name in draws), flush=True)


if __name__ == "__main__":
    main()
