"""Noisy sums: Gaussian noise added in float64 and rounded to a grid, so that sums give away no more than the
noise says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from equidp.kernel.bounding import ROUNDING, bounded_rows, summed_rows
from equidp.kernel.engine import Sums
from equidp.kernel.noise import Randomness, exact_place, grid
from equidp.kernel.processes import ALONE, Processes

_NOISE_BLOCK, _DEVICE_NOISE_BLOCK = 2**16, 2**22
"""Numbers that noise is drawn for at a time: on the CPU what fits into the cache, elsewhere so many that
calls are few."""
_JOINED = 2**18
"""Numbers whose sums are joined into one tensor: few enough that the copy takes little memory, and the same
on all devices."""


def private_sum(
    rows: Tensor,
    *,
    bound: float,
    noise_multiplier: float,
    randomness: Randomness,
    processes: Processes = ALONE,
) -> Tensor:
    """The sum of rows, each scaled to norm <= bound, plus Gaussian noise.

    Formal guarantee: for two sets of rows that differ in one row, added or removed, this is a Gaussian
    mechanism with noise multiplier `noise_multiplier`. The rows may be spread over processes. No rows give
    noise alone; infinite and NaN rows count as zero; a noise multiplier of 0 gives no guarantee.

    Args:
        rows: [batch, d]; the batch may be empty.
        bound: L2 sensitivity of the sum, > 0 and finite.
        noise_multiplier: sigma; the standard deviation of the noise is sigma * bound * (1 + ROUNDING).
        randomness: where the noise comes from.
        processes: whose rows are summed; the result is the same in all.

    Returns:
        [d], float64, on the grid of its noise (`equidp.kernel.noise.grid`); on the CPU where the rows'
        device has no float64.

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
"""Parameters in their order, cut into blocks whose sums are joined: a step then takes as many operations as
there are blocks, not parameters."""


def parameter_blocks(parameters: Sequence[nn.Parameter], size: int = _JOINED) -> Blocks:
    """Return the parameters in blocks of at most `size` numbers, of one device and type each.

    A larger parameter is a block of its own.

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
    """Return the float64 sums of each block as one tensor, [numbers]; zeros where a parameter has no sum."""

    def flat(parameter: nn.Parameter) -> Tensor:
        if parameter in sums:
            return sums[parameter].reshape(-1)
        return torch.zeros(parameter.numel(), dtype=torch.float64, device=exact_place(parameter.device))

    return [
        flat(*block) if len(block) == 1 else torch.cat([flat(each) for each in block]) for block in blocks
    ]


def split_sums(blocks: Blocks, joined: Sequence[Tensor]) -> list[Tensor]:
    """Return the joined tensors as one for each parameter, [*shape], in its type and on its device."""
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
    """Replace contiguous sums by their totals over processes plus noise, over `divisor`, in place.

    Formal guarantee: if one example moves the computed sums of one process by at most (1 + ROUNDING) times
    the sensitivity that this process gives, the result is a Gaussian mechanism with noise multiplier
    `noise_multiplier`, also where processes give different sensitivities: sums travel in units of them. The
    first process adds the noise, once, and the result is the same in all.

    | case | what happens |
    | --- | --- |
    | noise_multiplier = 0 | exact totals: no guarantee, and no sensitivity is needed |
    | a process fails or is gone | ProcessError; the totals are not to be used |

    Args:
        totals: this process' sums, in float64.
        sensitivity: of these sums, > 0; finite unless there is no noise.
        noise_multiplier: sigma.
        divisor: expected batch size, say.
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

    Formal guarantee: the result follows from the rounded noisy sum alone. Noise is added before anything is
    rounded, so the grid's width does not depend on the data. Sums on a device without float64 are noised and
    rounded on the CPU.
    """
    width = grid(scale)
    for total in totals:
        for part in total.view(-1).split(_NOISE_BLOCK if total.is_cpu else _DEVICE_NOISE_BLOCK):
            noise = randomness.normal(len(part), part.device, scale / width)
            noise.add_(part.to(noise.device), alpha=1 / width)
            part.copy_(noise.round_().mul_(width / divisor))
