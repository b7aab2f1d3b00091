"""Tests that the noise and the samples that steps drew are as claimed, in each parameter, for each
example and at each distance in steps.

An attack along one direction does not see a parameter without noise, nor a sample that comes again after many
steps. An audit knows the sums before noise and all samples, so it tests these themselves. All tests of an
audit together raise a false alarm in at most one of 10^6 audits: each has its share of that (Bonferroni).

| test | of | alarm |
| --- | --- | --- |
| variance | each parameter, and each tensor of parameters | noise that is missing, or smaller |
| variance | each tensor in each step | noise that some steps are without |
| variance | the sum of each tensor | noise that adds up to nothing |
| mean | the same | noise of one sign |
| distances | each tensor, up to `_LAGS` steps apart | noise that comes again |
| repeated steps | each tensor, any two steps | noise that comes again, at any distance |
| equal parameters | all of them | noise that two parameters share |
| pairs | a few parameters; a few examples | noise, or places in samples, that go together |
| shape | a few parameters | noise that is not normal |
| rate | each example | an example that is always drawn, or never |
| sizes | samples | samples of a fixed size |
| distances | a few examples, up to `_LAGS` steps apart | samples that come again, or avoid each other |
| repeated samples | any two steps | samples that come again, at any distance |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from scipy import stats

Floats = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[np.float64]]

ALARM = 1e-6
"""Largest probability of any alarm without a fault."""
_PARAMETERS, _EXAMPLES, _PAIRED, _SKETCH = 2**16, 2**11, 64, 8
"""Numbers of parameters and of examples tested one by one, of either tested in pairs, and of sums that
represent the noise of a tensor."""
_LAGS = 256
_ENOUGH = 400
"""Fewest products whose sum is treated as normal."""
_SAME = 1e-4


@final
@dataclass(frozen=True)
class DrawFinding:
    """Test that noise or samples failed.

    Attributes:
        test: name of the test, such as "variance of the noise".
        place: the parameters or examples, and their distance in steps.
        p_value: multiplied by the number of tests of this kind; at most `ALARM` / the number of kinds.
    """

    test: str
    place: str
    p_value: float


@final
class DrawRecord:
    """Sums over a stretch of steps that the tests need.

    Args:
        tensors: name -> number of parameters, in the order of the noise.
        examples: number of examples that samples are drawn from.
        rate: of sampling; or of each example, [examples].
    """

    def __init__(self, tensors: Mapping[str, int], examples: int, rate: float | Floats) -> None:
        self._watched = watched_places(tensors)
        self._buckets, self._scales = _assign_sums(tensors)
        self._signs = np.random.default_rng(0)
        self._rates = None if isinstance(rate, float | int) else np.asarray(rate, dtype=np.float64)
        self._examples = examples
        self._seen = _spread_evenly(examples, _EXAMPLES)
        self._columns = np.zeros((4, len(self._watched)))
        self._squares, self._sums = np.zeros(len(tensors)), np.zeros(len(tensors))
        self._ends = np.cumsum([0, *tensors.values()])
        self._before: Floats | None = None
        self._by_step: list[Floats] = []
        self._steps: list[Floats] = []
        self._few: list[Floats] = []
        self._taken: list[npt.NDArray[np.int64]] = []

    def note(self, noise: Floats, sample: npt.NDArray[np.int64]) -> None:
        """Add one step.

        Args:
            noise: of each parameter, in units of the claimed standard deviation, [parameters].
            sample: indices of the examples that were drawn.
        """
        one = noise[self._watched]
        sign = self._signs.choice([-1.0, 1.0])
        before = np.zeros_like(one) if self._before is None else self._before
        self._columns += np.stack([one, one**2, one * before, sign * one])
        self._before = one
        of_step = np.stack([np.add.reduceat(each, self._ends[:-1]) for each in (noise, noise**2)])
        self._by_step.append(of_step.astype(np.float64))
        self._sums += of_step[0]
        self._squares += of_step[1]
        self._steps.append(np.bincount(self._buckets, noise * self._scales).astype(np.float64))
        self._few.append(one[_spread_evenly(len(one), _PAIRED)].astype(np.float64))
        self._taken.append(np.asarray(sample, dtype=np.int64))

    def arrays(self) -> dict[str, Floats]:
        """Sums of the stretch, by name."""
        members = np.zeros((len(self._taken), self._examples), dtype=bool)
        for row, sample in zip(members, self._taken, strict=True):
            row[sample] = True
        numbers = np.random.default_rng(0).random(self._examples)
        return {
            "columns": self._columns,
            "tensors": np.stack([self._sums, self._squares]),
            "by_step": np.stack(self._by_step),
            "steps": np.stack(self._steps),
            "few": np.stack(self._few),
            "counts": members.sum(axis=0).astype(np.float64),
            "sizes": np.array([len(sample) for sample in self._taken], dtype=np.float64),
            "names": members @ numbers,
            "members": members[:, self._seen].astype(np.float64),
            **(
                {}
                if self._rates is None
                else {"rates": self._rates, "watched": self._seen.astype(np.float64)}
            ),
        }


def check_draws(
    stretches: Iterable[Arrays], tensors: Mapping[str, int], rate: float
) -> tuple[DrawFinding, ...]:
    """Return the tests that the draws of all stretches together failed, the smallest p-value first.

    Args:
        stretches: `DrawRecord.arrays` of each; examples beyond the fewest are not tested.
        tensors: name -> number of parameters.
        rate: of sampling, of stretches whose examples have no rates of their own.
    """
    given = list(stretches)
    kinds = [*_noise_tests(given, tensors), *_sample_tests(given, rate)]
    found = [each for each in kinds if each.p_value <= ALARM / len(kinds)]
    return tuple(sorted(found, key=lambda each: each.p_value))


def _noise_tests(given: list[Arrays], tensors: Mapping[str, int]) -> Iterator[DrawFinding]:
    steps = sum(len(each["steps"]) for each in given)
    names, sizes = list(tensors), np.array(list(tensors.values()))
    places = watched_places(tensors)
    columns = sum((each["columns"] for each in given), np.zeros((4, len(places))))
    sums, squares = sum((each["tensors"] for each in given), np.zeros((2, len(names))))

    def parameter(place: int) -> str:
        tensor = int(np.searchsorted(np.cumsum(sizes), places[place], side="right"))
        return f"{names[tensor]}, number {places[place] - int(sizes[:tensor].sum())}"

    one = np.asarray(stats.chi2.cdf(columns[1], steps))
    yield _smallest_chance("variance of the noise of a parameter", one, parameter)
    whole = np.asarray(stats.chi2.cdf(squares, steps * sizes))
    yield _smallest_chance("variance of the noise of a tensor", whole, lambda place: names[place])
    large = np.flatnonzero(sizes >= _SKETCH)  # the grid of noise gives a few numbers 0 too often
    if len(large):
        by_step = np.concatenate([each["by_step"] for each in given])[:, :, large]
        in_steps = np.asarray(stats.chi2.cdf(by_step[:, 1], sizes[large]))
        yield _smallest_chance(
            "variance of the noise of a tensor in a step",
            in_steps.ravel(),
            lambda place: f"{names[large[place % len(large)]]}, step {place // len(large)}",
        )
        totals = np.asarray(stats.chi2.cdf((by_step[:, 0] ** 2).sum(axis=0) / sizes[large], steps))
        chances = totals if steps >= _SKETCH else np.ones(len(large))
        yield _smallest_chance(
            "variance of the sum of a tensor's noise", chances, lambda place: names[large[place]]
        )
    yield _smallest_chance(
        "mean of the noise of a parameter", _two_sided(columns[0] / np.sqrt(steps)), parameter
    )
    means = _two_sided(sums / np.sqrt(steps * sizes))
    yield _smallest_chance("mean of the noise of a tensor", means, lambda place: names[place])

    parts = np.split(np.arange(given[0]["steps"].shape[1]), np.cumsum(np.minimum(sizes, _SKETCH))[:-1])
    lags, repeated = [], []
    every = np.concatenate([each["steps"] for each in given])
    for name, part in zip(names, parts, strict=True):
        scores, counts = _products_by_lag([each["steps"][:, part] for each in given])
        chances = _product_chances(scores, counts * len(part))
        lags += [(float(chance), f"{name}, {lag + 1} steps apart") for lag, chance in enumerate(chances)]
        if len(part) >= 4 and _find_equal_columns(every[:, part].T):
            repeated.append(name)
    yield _smallest_chance(
        "noise of steps", np.array([chance for chance, _ in lags] or [1.0]), lambda at: lags[at][1]
    )
    yield DrawFinding("noise that comes again in another step", ", ".join(repeated), 0.0 if repeated else 1.0)
    twins = _find_equal_columns(columns / np.sqrt(steps)) if len(places) > 1 and steps >= 50 else None
    where = "" if twins is None else f"{parameter(twins[0])} and {parameter(twins[1])}"
    yield DrawFinding("noise that two parameters share", where, 1.0 if twins is None else 0.0)
    few = np.concatenate([each["few"] for each in given])
    some = _spread_evenly(len(places), _PAIRED)
    yield _correlation_finding("noise of two parameters", few, lambda place: parameter(int(some[place])))
    yield DrawFinding("shape of the noise", "all", float(stats.kstest(few.ravel(), "norm").pvalue))


def _sample_tests(given: list[Arrays], rate: float) -> Iterator[DrawFinding]:
    """Tests of samples; those of examples together are of the examples with the most frequent rate."""
    examples = min(len(each["counts"]) for each in given)
    steps = sum(len(each["sizes"]) for each in given)
    counts = sum((each["counts"][:examples] for each in given), np.zeros(examples))
    of_examples = [each.get("rates", np.full(len(each["counts"]), rate)) for each in given]
    rates = of_examples[0][:examples]
    sure = np.isin(rates, (0.0, 1.0))
    wrong = np.where(sure & (counts != steps * rates), 0.0, 1.0)
    if sure.all():
        yield _smallest_chance("rate of sampling", wrong, lambda place: f"example {place}")
        return
    low, high = stats.binom.cdf(counts, steps, rates), stats.binom.sf(counts - 1, steps, rates)
    chances = np.where(sure, wrong, np.minimum(1, 2 * np.minimum(low, high)))
    yield _smallest_chance("rate of sampling", chances, lambda place: f"example {place}")
    spread = sum(
        float(((each["sizes"] - own.sum()) ** 2).sum() / (own * (1 - own)).sum())
        for each, own in zip(given, of_examples, strict=True)
    )
    log_equal = float(np.log(rates**2 + (1 - rates) ** 2).sum())
    values, numbers = np.unique(rates[~sure], return_counts=True)
    rate = float(values[numbers.argmax()])
    deviation = rate * (1 - rate)
    if (rates * (1 - rates)).sum() >= 10:
        chance = _two_sided_chi2(np.array([spread]), steps)
        yield _smallest_chance("sizes of samples", chance, lambda place: "all")
    watched = [_watched_columns(each, own, rate) for each, own in zip(given, of_examples, strict=True)]
    watch = min(each.shape[1] for each in watched)
    centred = [(each[:, :watch] - rate) / np.sqrt(deviation) for each in watched]
    scores, pairs = _products_by_lag(centred)
    products = pairs * watch
    usable = (products * rate**2 >= 25) & (products >= _ENOUGH)
    chances = np.where(usable, _membership_chances(scores, products, rate), 1.0)
    yield _smallest_chance("samples of steps", chances, lambda place: f"{place + 1} steps apart")
    if np.log(steps**2 / 2) + log_equal < np.log(ALARM) - 7:
        names = np.concatenate([each["names"] for each in given])
        again = len(names) - len(np.unique(names.round(9)))
        yield DrawFinding("samples that come again", f"{again} of {steps}", 0.0 if again else 1.0)
    few = np.concatenate([each[:, :_PAIRED] for each in centred])
    if steps * rate**2 >= 25:
        together = few.T @ few
        upper = np.triu_indices(len(together), 1)
        chances = _membership_chances(together[upper], np.full(len(upper[0]), steps), rate)
        yield _smallest_chance(
            "two examples in samples", chances, lambda at: f"{upper[0][at]} and {upper[1][at]}, as watched"
        )


def _watched_columns(stretch: Arrays, rates: Floats, rate: float) -> Floats:
    """Memberships of the watched examples that have one rate, [steps, examples]."""
    if "watched" not in stretch:
        return stretch["members"]
    members: Floats = stretch["members"][:, rates[stretch["watched"].astype(np.int64)] == rate]
    return members


def watched_places(tensors: Mapping[str, int]) -> npt.NDArray[np.int64]:
    """Return the places of the parameters that are tested one by one: all, or a share of each tensor."""
    total = sum(tensors.values())
    if total <= _PARAMETERS:
        return np.arange(total)
    starts = np.cumsum([0, *tensors.values()])[:-1]
    least = max(1, _PARAMETERS // (2 * len(tensors)))
    shares = [max(min(size, least), size * _PARAMETERS // (2 * total)) for size in tensors.values()]
    parts = [
        start + _spread_evenly(size, share)
        for start, size, share in zip(starts, tensors.values(), shares, strict=True)
    ]
    return np.concatenate(parts)


def _spread_evenly(count: int, most: int) -> npt.NDArray[np.int64]:
    """Return at most `most` evenly spread places among `count`, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _assign_sums(tensors: Mapping[str, int]) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the sum to which each parameter belongs, up to `_SKETCH` sums a tensor, and its factor there.

    The sums of normal noise are independent standard normal numbers again.
    """
    generator, first, buckets, scales = np.random.default_rng(0), 0, [], []
    for size in tensors.values():
        number = min(size, _SKETCH)
        own = np.asarray(generator.permutation(size) % number)
        buckets.append(first + own)
        scales.append(generator.choice([-1.0, 1.0], size) / np.sqrt(np.bincount(own)[own]))
        first += number
    return np.concatenate(buckets), np.concatenate(scales)


def _products_by_lag(stretches: list[Floats]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Sums of products of all columns at each lag in steps, and the number of products, [lags] each."""
    lags = min(_LAGS, max(len(each) for each in stretches) - 1)
    sums, counts = np.zeros(lags), np.zeros(lags, dtype=np.int64)
    for each in stretches:
        length = len(each)
        transform = np.fft.rfft(each, 2 * length, axis=0)
        products = np.fft.irfft((np.abs(transform) ** 2).sum(axis=1))[1 : min(lags, length - 1) + 1]
        sums[: len(products)] += products
        counts[: len(products)] += length - 1 - np.arange(len(products))
    return sums, counts


def _find_equal_columns(rows: Floats) -> tuple[int, int] | None:
    """Return two columns that are equal, up to sign, within rounding; None without such columns.

    Args:
        rows: [numbers, columns]; numbers of unlike columns are about 1 apart.
    """
    sizes = np.abs(rows)
    order = np.argsort(sizes[0])
    for step in range(1, min(17, len(order))):
        one, other = order[:-step], order[step:]
        near = (np.abs(sizes[:, one] - sizes[:, other]) < _SAME).all(axis=0) & (sizes[:, one] > 0.02).any(
            axis=0
        )
        if near.any():
            at = int(near.argmax())
            return int(one[at]), int(other[at])
    return None


def _product_chances(sums: Floats, products: npt.NDArray[np.int64]) -> Floats:
    """Chances of sums of products of two standard normal numbers, whose tails are heavier than normal; 1
    where the products are few."""
    many = np.maximum(products, _ENOUGH)
    scores = sums / np.sqrt(many)
    heavier = np.exp(np.minimum(scores**4 / (4 * many), 50.0))
    return np.where(products >= _ENOUGH, np.minimum(1.0, _two_sided(scores) * heavier), 1.0)


def _correlation_finding(test: str, few: Floats, named: Callable[[int], str]) -> DrawFinding:
    """Correlations of any two columns of normal numbers, [steps, columns]."""
    varied = np.flatnonzero(few.std(axis=0) > 1e-9)
    upper = tuple(varied[each] for each in np.triu_indices(len(varied), 1))
    if len(few) < 10 or not len(upper[0]):
        return DrawFinding(test, "", 1.0)
    together = np.asarray(np.corrcoef(few[:, varied].T))[np.triu_indices(len(varied), 1)]
    found = np.clip(together, -1 + 1e-12, 1 - 1e-12)
    scores = found * np.sqrt((len(few) - 2) / (1 - found**2))
    chances = 2 * stats.t.sf(np.abs(scores), len(few) - 2)
    return _smallest_chance(test, chances, lambda at: f"{named(upper[0][at])} and {named(upper[1][at])}")


def _membership_chances(sums: Floats, products: Floats | npt.NDArray[np.int64], rate: float) -> Floats:
    """Chances of sums of standardised products of memberships: the larger of normal and Poisson chance."""
    products = np.maximum(products, 1)
    scores = sums / np.sqrt(products)
    together = products * rate**2 + sums * rate * (1 - rate)
    poisson = np.where(scores > 0, stats.poisson.sf(np.ceil(together) - 1, products * rate**2), 0.0)
    return np.minimum(1.0, np.maximum(_two_sided(scores), poisson))


def _two_sided(scores: Floats) -> Floats:
    return np.asarray(2 * stats.norm.sf(np.abs(scores)))


def _two_sided_chi2(squares: Floats, freedom: int | Floats | npt.NDArray[np.int64]) -> Floats:
    low, high = stats.chi2.cdf(squares, freedom), stats.chi2.sf(squares, freedom)
    return np.asarray(np.minimum(1.0, 2 * np.minimum(low, high)))


def _smallest_chance(test: str, chances: Floats, named: Callable[[int], str]) -> DrawFinding:
    """Return the least of all chances, times their number."""
    place = int(np.argmin(chances))
    return DrawFinding(test, named(place), min(1.0, float(chances[place]) * len(chances)))
