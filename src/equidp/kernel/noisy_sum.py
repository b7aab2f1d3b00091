"""Add Gaussian noise in float64 and round to a grid, so that sums reveal no more than the noise allows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equidp.kernel.bounding import ROUNDING, bounded_rows, summed_rows
from equidp.kernel.engine import Sums
from equidp.kernel.noise import Randomness, exact_place, grid
from equidp.kernel.processes import ALONE, Processes

_NOISE_BLOCK, _DEVICE_NOISE_BLOCK = 2**16, 2**22
"""Number of draws of noise at a time: on the CPU as many as fit into the cache, elsewhere enough to keep
calls few."""
_JOINED = 2**18
"""Number of sums joined into one tensor: few enough that the copy takes little memory, and the same on all
devices."""


def private_sum(
    rows: Tensor,
    *,
    bound: float,
    noise_multiplier: float,
    randomness: Randomness,
    processes: Processes = ALONE,
) -> Tensor:
    """Return the sum of rows, each scaled to norm <= bound, plus Gaussian noise.

    Formal guarantee: for two sets of rows that differ in one row, added or removed, this is a Gaussian
    mechanism with noise multiplier `noise_multiplier`. The rows may be spread over processes. Without rows,
    the result is only noise. Infinite and NaN rows count as zero. A noise multiplier of 0 gives no guarantee.

    Args:
        rows: [batch, d]. The batch may be empty.
        bound: L2 sensitivity of the sum, > 0 and finite.
        noise_multiplier: noise multiplier sigma. The standard deviation of the noise is sigma * bound * (1 +
            ROUNDING).
        randomness: source of the noise.
        processes: processes whose rows are summed. The result is the same in all.

    Returns:
        [d], float64, on the grid of its noise (`equidp.kernel.noise.grid`); on the CPU if the rows' device
        has no float64.

    Example:
        >>> import torch, equidp
        >>> from equidp.kernel.noise import SeededRandomness
        >>> rows = torch.tensor([[3.0, 4.0], [0.0, 0.5]])
        >>> equidp.private_sum(rows, bound=1.0, noise_multiplier=0.0, randomness=SeededRandomness(0))
        tensor([0.6000, 1.3000], dtype=torch.float64)
    """
    total = summed_rows(bounded_rows(rows, bound))
    release([total], bound, noise_multiplier, randomness, 1.0, processes)
    return total


Blocks = list[list[nn.Parameter]]
"""Parameters in their order, in blocks whose sums are joined. A step then takes one operation per block, not
per parameter."""


def parameter_blocks(parameters: Sequence[nn.Parameter], size: int = _JOINED) -> Blocks:
    """Return the parameters in blocks of at most `size` numbers, of one device and type each.

    A larger parameter is its own block.

    >>> weight, bias = nn.Linear(3, 2).parameters()
    >>> [len(block) for block in parameter_blocks([weight, bias])]
    [2]
    """
    blocks: Blocks = []
    room, kind = 0, None
    for parameter in parameters:
        count, own = parameter.numel(), (parameter.device, parameter.dtype)
        if count > room or own != kind:
            blocks.append([])
            room, kind = size, own
        blocks[-1].append(parameter)
        room -= count
    return blocks


def join_sums(blocks: Blocks, sums: Sums) -> list[Tensor]:
    """Return the float64 sums of each block as one tensor, [numbers]; zeros for a parameter without a sum."""

    def flat(parameter: nn.Parameter) -> Tensor:
        if parameter in sums:
            return sums[parameter].reshape(-1)
        return torch.zeros(parameter.numel(), dtype=torch.float64, device=exact_place(parameter.device))

    return [
        flat(*block) if len(block) == 1 else torch.cat([flat(each) for each in block]) for block in blocks
    ]


def split_sums(blocks: Blocks, joined: Sequence[Tensor]) -> list[Tensor]:
    """Split the joined tensors into one per parameter, [*shape], in its type and on its device."""
    found = []
    for block, total in zip(blocks, joined, strict=True):
        total = total.to(block[0].device, block[0].dtype)
        sizes = [each.numel() for each in block]
        parts = torch.split_with_sizes(total, sizes) if len(block) > 1 else (total,)
        found += [part.view(each.shape) for part, each in zip(parts, block, strict=True)]
    return found


def release(
    totals: Sequence[Tensor],
    sensitivity: float,
    noise_multiplier: float,
    randomness: Randomness,
    divisor: float,
    processes: Processes = ALONE,
) -> None:
    """Replace contiguous sums in place: total over processes, add noise, and divide by `divisor`.

    Formal guarantee: suppose that one example moves the computed sums of one process by at most (1 +
    ROUNDING) times the sensitivity that this process passes. Then the result is a Gaussian mechanism with
    noise multiplier `noise_multiplier`. Processes may pass different sensitivities, because each sends its
    sums in units of its own. The first process adds the noise, once, and the result is the same in all.

    | case | what happens |
    | --- | --- |
    | noise_multiplier = 0 | exact totals: no guarantee, and no sensitivity is needed |
    | a process fails or is gone | ProcessError; do not use the totals |

    Args:
        totals: this process's sums, in float64.
        sensitivity: sensitivity of these sums, > 0; finite unless there is no noise.
        noise_multiplier: noise multiplier sigma.
        divisor: for example the expected batch size.
    """
    several = processes.count > 1
    if several and noise_multiplier:
        for total in totals:
            total.div_(sensitivity)
    processes.sum_on_first(totals)
    if not processes.first:
        if noise_multiplier:
            for total in totals:
                randomness.skip(total.numel())
    elif noise_multiplier:
        if several:
            for total in totals:
                total.mul_(sensitivity)
        add_noise(totals, noise_multiplier * sensitivity * (1 + ROUNDING), randomness, divisor)
    else:
        for total in totals:
            total.div_(divisor)
    processes.copy_from_first(totals)


def add_noise(totals: Sequence[Tensor], scale: float, randomness: Randomness, divisor: float) -> None:
    """Add noise of standard deviation `scale` to contiguous sums, round, and divide by `divisor`, in place.

    Formal guarantee: the result is a function of only the rounded noisy sum. Noise is added before anything
    is rounded, so the grid's width does not depend on the data. If a device has no float64, sums are noised
    and rounded on the CPU.
    """
    width = grid(scale)
    for total in totals:
        for part in total.view(-1).split(_NOISE_BLOCK if total.is_cpu else _DEVICE_NOISE_BLOCK):
            noise = randomness.normal(len(part), part.device, scale / width)
            noise.add_(part.to(noise.device), alpha=1 / width)
            part.copy_(noise.round_().mul_(width / divisor))
