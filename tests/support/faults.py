"""Faults of the kernel, planted on purpose to see whether an audit catches them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import equidp
import equidp.kernel.noisy_sum
import equidp.kernel.run
import equidp.kernel.step
from equidp.kernel.bounding import group_bounds
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.run import PrivateRun
from equidp.kernel.sampling import PoissonSampler
from equidp.kernel.step import PrivateStep

Plant = Callable[[pytest.MonkeyPatch], None]


def noise_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    add_noise = equidp.kernel.noisy_sum.add_noise

    def halved(totals: Any, scale: float, *rest: Any) -> None:
        add_noise(totals, scale / 2, *rest)

    monkeypatch.setattr(equidp.kernel.noisy_sum, "add_noise", halved)


def sensitivity_over_groups_present(monkeypatch: pytest.MonkeyPatch) -> None:
    """As published code takes it."""
    call = PrivateStep.__call__

    def seeing(self: PrivateStep, inputs: Any, targets: Any, groups: Any, *others: Any) -> Any:
        self.present = groups.unique()  # type: ignore[attr-defined]
        return call(self, inputs, targets, groups, *others)

    def over_present(self: PrivateStep) -> float:
        present = getattr(self, "present", slice(None))  # none when it is made
        return float(group_bounds(self.policy, self.state, self.num_groups)[present].max())

    monkeypatch.setattr(PrivateStep, "__call__", seeing)
    monkeypatch.setattr(PrivateStep, "_sensitivity", over_present)


def division_by_the_realised_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    call = PrivateStep.__call__

    def realised(self: PrivateStep, inputs: Any, targets: Any, groups: Any, *others: Any) -> Any:
        self.expected_batch_size = float(max(1, len(groups)))
        return call(self, inputs, targets, groups, *others)

    monkeypatch.setattr(PrivateStep, "__call__", realised)


def sample_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps on each sample, of which one is charged."""
    next_sample, held = PrivateRun._next_sample, []

    def again(self: PrivateRun) -> Any:
        if held:
            return held[0]
        held.append(next_sample(self))
        self.step()
        return held.pop()

    pay = PrivateRun._pay
    monkeypatch.setattr(PrivateRun, "_next_sample", again)
    monkeypatch.setattr(PrivateRun, "_pay", lambda self: True if held else pay(self))


def statistics_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    private_sum = equidp.kernel.step.private_sum

    def exact(rows: Any, **settings: Any) -> Any:
        return private_sum(rows, **{**settings, "noise_multiplier": 0.0})

    monkeypatch.setattr(equidp.kernel.step, "private_sum", exact)


def weights_that_depend_on_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights shrink where one norm is large."""
    example_weights = equidp.kernel.step.example_weights

    def relative(policy: Any, state: Any, norms: Any, *others: Any) -> Any:
        return example_weights(policy, state, norms, *others) * (10 / norms.max()).clamp(max=1.0)

    monkeypatch.setattr(equidp.kernel.step, "example_weights", relative)


class _Repeating(SeededRandomness):
    """Gives each noise twice, as a stream that starts anew where a run is resumed after its first step."""

    _given: torch.Tensor | None = None

    def normal(self, count: int, device: Any = "cpu", deviation: float = 1.0) -> torch.Tensor:
        if self._given is None:
            self._given = super().normal(count, device, deviation)
            return self._given.clone()
        given, self._given = self._given, None
        return given


def noise_repeated_after_a_resume(monkeypatch: pytest.MonkeyPatch) -> None:
    """For audits of two steps a run."""
    monkeypatch.setattr("equidp.audit.step.make_randomness", lambda secure, *seeds: _Repeating(*seeds))


class _Shuffled(PoissonSampler):
    """Cuts each pass over the shuffled data into batches of equal size."""

    def _block(self, steps: int) -> Any:
        parts = round(1 / self.sample_rate)
        while True:
            order = np.argsort(self._randomness.uniform(self.num_examples))
            for part in np.array_split(order, parts):
                if not steps:
                    return
                steps -= 1
                yield torch.from_numpy(np.sort(part))


def batches_that_are_not_poisson_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equidp.kernel.run, "PoissonSampler", _Shuffled)


def groups_drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at the largest rate."""
    block = PoissonSampler._block

    def block_without_labels(self: PoissonSampler, steps: int) -> Any:
        self._labels = None
        return block(self, steps)

    monkeypatch.setattr(PoissonSampler, "_block", block_without_labels)


def noise_changed(change: Callable[[list[torch.Tensor], int], None]) -> Plant:
    """Plant a change of the noise itself: `change` gets that of each tensor, and the number of the step."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        add_noise, steps = equidp.kernel.noisy_sum.add_noise, itertools.count()

        def changed(totals: Any, scale: float, randomness: Any, divisor: float) -> None:
            exact = [total.clone() / divisor for total in totals]
            add_noise(totals, scale, randomness, divisor)
            noise = [total - before for total, before in zip(totals, exact, strict=True)]
            change(noise, next(steps))
            for total, before, each in zip(totals, exact, noise, strict=True):
                total.copy_(before + each)

        monkeypatch.setattr(equidp.kernel.noisy_sum, "add_noise", changed)
        # Sums of parameters are not joined, so that each has noise of its own to change.
        monkeypatch.setattr(equidp.kernel.step, "parameter_blocks", lambda each: [[one] for one in each])

    return plant


def _again(lag: int, *, half: bool = False) -> Callable[[list[torch.Tensor], int], None]:
    """Each noise a second time so many steps later: of all parameters, or of the first tensor alone."""
    held: dict[int, list[torch.Tensor]] = {}

    def change(noise: list[torch.Tensor], step: int) -> None:
        if step == 0:
            held.clear()
        held[step] = [each.clone() for each in noise]
        if step % (2 * lag) >= lag:
            for each, before in zip(noise[:1] if half else noise, held[step - lag], strict=False):
                each.copy_(before)

    return change


def _scaled(place: int, factor: float, where: Any = slice(None)) -> Callable[[list[torch.Tensor], int], None]:
    def change(noise: list[torch.Tensor], step: int) -> None:
        noise[place].view(-1)[where] *= factor

    return change


def _shared(sign: float) -> Callable[[list[torch.Tensor], int], None]:
    """The bias has the noise of the first weights."""

    def change(noise: list[torch.Tensor], step: int) -> None:
        noise[1].copy_(sign * noise[0].view(-1)[: noise[1].numel()])

    return change


def _mixed(noise: list[torch.Tensor], step: int) -> None:
    """Two parameters share half of their noise's variance."""
    one, other = noise[0].view(-1)[:2]
    other.copy_((one + other) / 2**0.5)


def _of_one_sign(noise: list[torch.Tensor], step: int) -> None:
    noise[-1].abs_()


def _of_two_values(noise: list[torch.Tensor], step: int) -> None:
    """Of the right variance, and not normal."""
    for each in noise:
        each.copy_(each.sign() * each.square().mean().sqrt())


NOISE_FAULTS = {
    "no noise on the last tensor": _scaled(-1, 0.0),
    "half the noise on the last tensor": _scaled(-1, 0.5),
    "half the noise on the first tensor": _scaled(0, 0.5),
    "no noise on one parameter": _scaled(0, 0.0, 3),
    "half the noise on one parameter": _scaled(0, 0.5, 3),
    "noise of one tensor in another": _shared(1.0),
    "noise of one tensor, turned around, in another": _shared(-1.0),
    "noise that two parameters share in part": _mixed,
    "noise again in the next step": _again(1),
    "noise again 5 steps later": _again(5),
    "noise of one tensor again 40 steps later": _again(40, half=True),
    "noise of one sign": _of_one_sign,
    "noise of two values": _of_two_values,
}
"""Changes of noise that a guess along one direction does not see, or not all of them."""


def _sampler(change: Callable[[list[torch.Tensor], int], None]) -> type[PoissonSampler]:
    """Change the samples of each pass, of the number of examples that is given too, in place."""

    class Changed(PoissonSampler):
        def __iter__(self) -> Any:
            samples = list(super().__iter__())
            change(samples, self.num_examples)
            return iter(samples)

    return Changed


def _samples_again(lag: int) -> Callable[[list[torch.Tensor], int], None]:
    def change(samples: list[torch.Tensor], n: int) -> None:
        for step in range(lag, len(samples)):
            if step % (2 * lag) >= lag:
                samples[step] = samples[step - lag]

    return change


def _one_again(samples: list[torch.Tensor], n: int) -> None:
    """One sample, once."""
    samples[-1] = samples[len(samples) // 3]


def _always(samples: list[torch.Tensor], n: int) -> None:
    for step, sample in enumerate(samples):
        samples[step] = torch.cat([sample, torch.tensor([3])]).unique()


def _never(samples: list[torch.Tensor], n: int) -> None:
    for step, sample in enumerate(samples):
        samples[step] = sample[sample != 3]


def _together(samples: list[torch.Tensor], n: int) -> None:
    """Example 4 is drawn where example 3 is."""
    for step, sample in enumerate(samples):
        without = sample[sample != 4]
        samples[step] = torch.cat([without, torch.tensor([4])]).sort()[0] if 3 in without else without


def _of_fixed_size(samples: list[torch.Tensor], n: int) -> None:
    size = round(sum(map(len, samples)) / len(samples))
    generator = torch.Generator().manual_seed(5)
    for step in range(len(samples)):
        samples[step] = torch.randperm(n, generator=generator)[:size].sort()[0]


SAMPLE_FAULTS = {
    "samples again in the next step": _samples_again(1),
    "samples again 32 steps later": _samples_again(32),
    "samples again 7 steps later": _samples_again(7),
    "samples again 90 steps later": _samples_again(90),
    "one sample again": _one_again,
    "an example that is always drawn": _always,
    "an example that is never drawn": _never,
    "two examples that are drawn together": _together,
    "samples of a fixed size": _of_fixed_size,
}
"""Changes of samples that guesses about one canary do not see, or not all of them."""


def samples_changed(name: str) -> type[PoissonSampler]:
    """A sampler with this fault."""
    return _sampler(SAMPLE_FAULTS[name])


class Planted(NamedTuple):
    """A fault, how to look for it, and with how many runs it is found."""

    plant: Plant
    runs: int
    settings: dict[str, Any]


def _alike(n: int, groups: int = 1) -> equidp.GroupedDataset:
    """Examples that are all the same, so that their gradients add up; the last of three groups is empty."""
    names = ("a", "b", "c")[:groups]
    return equidp.GroupedDataset(
        torch.ones(n, 3),
        torch.zeros(n, dtype=torch.int64),
        torch.arange(n) % min(groups, 2),
        names,
        ("no", "yes"),
    )


def _plan(batch_size: int) -> equidp.Plan:
    return equidp.Plan(model=lambda shape, classes: nn.Linear(shape[0], classes), batch_size=batch_size)


ONE_STEP = {"train": _alike(24), "plan": _plan(24)}
TWO_STEPS = {"train": _alike(24), "plan": _plan(12), "sample_rate": 0.5, "steps": 2}
FAULTS = {
    "noise halved": Planted(noise_halved, 200, ONE_STEP),
    "sensitivity over the groups present": Planted(
        sensitivity_over_groups_present,
        100,
        {"train": _alike(120, groups=3), "plan": _plan(120), "method": "naive"},
    ),
    "division by the realised batch size": Planted(division_by_the_realised_batch_size, 200, ONE_STEP),
    "a sample used twice": Planted(sample_used_twice, 400, ONE_STEP),
    "statistics without noise": Planted(
        statistics_without_noise, 100, {**ONE_STEP, "train": _alike(24, groups=2), "method": "dpsgd-f"}
    ),
    "weights that depend on others": Planted(weights_that_depend_on_others, 100, ONE_STEP),
    "noise repeated after a resume": Planted(noise_repeated_after_a_resume, 150, TWO_STEPS),
    "batches that are not Poisson samples": Planted(
        batches_that_are_not_poisson_samples, 400, {**TWO_STEPS, "epsilon": 20.0}
    ),
}
