"""ChaCha20's keystream in one Triton kernel. `equidp.kernel.keystream` checks it before use."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_SIZE = 128
"""Number of keystream blocks that one program computes, one per thread."""


def blocks_of(start: Tensor, blocks: int) -> Tensor:
    """Return keystream blocks, [blocks, 16], int32, computed from the state of the first block, [16].

    Guarantee: each number of the result is written, by the one program that computes its block.
    """
    words = torch.empty(blocks, 16, dtype=torch.int32, device=start.device)
    with torch.cuda.device_of(start):
        _fill[(triton.cdiv(blocks, _SIZE),)](words, start, blocks, SIZE=_SIZE)
    return words


@triton.jit
def _rotate_left(words, BY: tl.constexpr):
    return (words << BY) | (words >> (32 - BY))


@triton.jit
def _quarter_round(a, b, c, d):
    a = a + b
    d = _rotate_left(d ^ a, 16)
    c = c + d
    b = _rotate_left(b ^ c, 12)
    a = a + b
    d = _rotate_left(d ^ a, 8)
    c = c + d
    b = _rotate_left(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _word(start, place, zeros):
    return tl.load(start + place).to(tl.uint32, bitcast=True) + zeros


@triton.jit(do_not_specialize=["blocks"])  # one compiled kernel for every count, which `is_exact` compares
def _fill(out, start, blocks, SIZE: tl.constexpr):
    block = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    zeros = tl.zeros([SIZE], dtype=tl.uint32)
    s0, s1, s2 = _word(start, 0, zeros), _word(start, 1, zeros), _word(start, 2, zeros)
    s3, s4, s5 = _word(start, 3, zeros), _word(start, 4, zeros), _word(start, 5, zeros)
    s6, s7, s8 = _word(start, 6, zeros), _word(start, 7, zeros), _word(start, 8, zeros)
    s9, s10, s11 = _word(start, 9, zeros), _word(start, 10, zeros), _word(start, 11, zeros)
    s12 = block.to(tl.uint32)
    s13, s14, s15 = _word(start, 13, zeros), _word(start, 14, zeros), _word(start, 15, zeros)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, s12, s13, s14, s15
    for _ in range(10):
        x0, x4, x8, x12 = _quarter_round(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter_round(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter_round(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter_round(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter_round(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter_round(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter_round(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter_round(x3, x4, x9, x14)
    place, inside = out + block * 16, block < blocks
    tl.store(place, (x0 + s0).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 1, (x1 + s1).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 2, (x2 + s2).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 3, (x3 + s3).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 4, (x4 + s4).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 5, (x5 + s5).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 6, (x6 + s6).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 7, (x7 + s7).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 8, (x8 + s8).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 9, (x9 + s9).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 10, (x10 + s10).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 11, (x11 + s11).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 12, (x12 + s12).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 13, (x13 + s13).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 14, (x14 + s14).to(tl.int32, bitcast=True), mask=inside)
    tl.store(place + 15, (x15 + s15).to(tl.int32, bitcast=True), mask=inside)
