"""Variants that a comparison trains for each seed: methods under names, epsilons, and settings to sweep."""

from __future__ import annotations

import itertools
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple, get_args, get_type_hints

from equidp._validate import names, unknown_name
from equidp.advice.advise import AUTO
from equidp.errors import SettingError
from equidp.kernel.event import Event
from equidp.kernel.policy import Policy
from equidp.policies.methods import (
    MethodLike,
    all_settings,
    found_policy,
    known_policies,
    method_named,
    name_of,
)
from equidp.policies.table import BASELINE, STANDARD
from equidp.training.plan import Plan
from equidp.training.release import Charge
from equidp.training.resolved import ResolvedPlan

Sweep = Mapping[str, Sequence[Any]]
"""Name of a setting of the plan or of methods -> its values; several settings: every combination."""

_NOT_SWEPT = {
    "epsilon": "give several to epsilons (--epsilon 1,3)",
    "seed": "give several to seeds",
    "method": "give several to methods",
    "risk": "give several to epsilons (--epsilon 1,3)",
    "accountant": "epsilons are compared by one accountant",
    "sample_rate": "sweep batch_size",
    "workers": "results do not depend on it",
    "physical_batch_size": "results do not depend on it",
    "releases": "they are objects",
    "delta": "epsilons are compared at one delta, the plan's (--delta)",
    "loss": "compare one loss at a time: the values of two are on two scales",
    "class_weight": "it is a table",
    "rates": "it is a table",
    "bound_shares": "it is a table",
    "epsilon_by_group": "it is a table",
    "method_settings": "name the setting itself, such as clipping_bound",
    "by_method": "name the setting itself, such as clipping_bound",
}


class Kind(NamedTuple):
    """Kind of run: runs of it differ in their seed alone."""

    method: str
    setting: str

    @property
    def label(self) -> str:
        """Name of the method, with its setting where a comparison has several."""
        return f"{self.method} ({self.setting})" if self.setting else self.method


@dataclass(frozen=True)
class Variant:
    """A method with its settings, trained once for each seed.

    Attributes:
        name: of the method.
        method: the method itself.
        plan: how to train.
        epsilon: target; None: the plan's noise multiplier.
        setting: label of what differs from other runs of the method; "" without a difference.
        swept: the swept settings that the method has, by name.
        counts_noise, balanced: see `equidp.comparison.cells.Cell`.
    """

    name: str
    method: MethodLike
    plan: Plan
    epsilon: float | None
    setting: str
    swept: Mapping[str, Any]
    counts_noise: float | None = None
    balanced: bool = False

    @property
    def kind(self) -> Kind:
        """Kind of its runs."""
        return Kind(self.name, self.setting)

    def resolve(
        self, num_train: int, releases: Sequence[Event] = (), group_names: Sequence[str] = ()
    ) -> ResolvedPlan:
        """Return the plan for `num_train` examples in these groups, by the method's name; epsilon covers the
        releases and the counts of classes too."""
        charges = tuple(map(Charge, (*releases, *counts_events(self.counts_noise))))
        plan = self.plan.for_method(self.method)
        # Other processes may not know the name of the method, nor those of its settings.
        plan = replace(plan, method=plan.policy, method_settings={}, releases=charges)
        if self.epsilon is not None:
            plan = plan.with_changes(epsilon=self.epsilon)
        return replace(plan.with_usual_noise().resolve(num_train, group_names), method=self.name)


def counts_events(noise_multiplier: float | None) -> tuple[Event, ...]:
    """Release of the counts of classes with this noise; none without noise."""
    return (Event(1.0, noise_multiplier),) if noise_multiplier else ()


def named_methods(methods: Sequence[MethodLike]) -> dict[str, MethodLike]:
    """Return name -> method without "auto", the baseline first. Settings distinguish policies of one class.

    Raises:
        SettingError, PolicyError: an unknown method, or no method but the baseline.

    >>> from equidp.policies import DPSGD
    >>> list(named_methods(["dpsgd", DPSGD(1.0), DPSGD(2.0)]))
    ['sgd', 'dpsgd', 'dpsgd clipping_bound=1', 'dpsgd clipping_bound=2']
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        raise SettingError(f"methods={methods!r}; expected a list of names, such as ['sgd', 'dpsgd'].")
    chosen: list[MethodLike] = [BASELINE]
    for method in methods:
        if method == AUTO:
            continue
        method_named(method)
        if name_of(method) != BASELINE and method not in chosen:
            chosen.append(method)
    if len(chosen) == 1 and AUTO not in methods:
        raise SettingError(
            f"methods={list(methods)}; expected at least one private method beside {BASELINE!r}."
        )
    plain = [name_of(method) for method in chosen]
    named: dict[str, MethodLike] = {}
    for method, name in zip(chosen, plain, strict=True):
        label = name if plain.count(name) == 1 or isinstance(method, str) else _distinguish(method, chosen)
        again = next(number for number in itertools.count(1) if _number_label(label, number) not in named)
        named[_number_label(label, again)] = method
    return named


def _number_label(label: str, number: int) -> str:
    return label if number == 1 else f"{label} #{number}"


def _distinguish(method: MethodLike, others: Sequence[MethodLike]) -> str:
    """Return a policy's name with the settings that differ from others of its class, or with all settings."""
    if not isinstance(method, Policy):
        return name_of(method)
    settings = asdict(method)  # type: ignore[call-overload]
    alike = [asdict(each) for each in others if type(each) is type(method)]  # type: ignore[call-overload]
    differing = [name for name in settings if len({each[name] for each in alike}) > 1]
    return f"{name_of(method)} {label_of({name: settings[name] for name in differing or settings})}".strip()


def label_of(settings: Mapping[str, Any]) -> str:
    """Label of settings, such as "learning_rate=0.1, epochs=20"."""
    return ", ".join(f"{name}={value_text(value)}" for name, value in settings.items())


def value_text(value: Any) -> str:
    """Text of a setting's value in labels."""
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else str(getattr(value, "__name__", value))


def sweep_variants(
    methods: Mapping[str, MethodLike], plan: Plan, epsilons: Sequence[float], sweep: Sweep
) -> list[Variant]:
    """Every method at every epsilon and combination of its swept settings; the baseline once.

    Raises:
        SettingError: an invalid epsilon, setting or value.
    """
    _check_sweep(methods, sweep)
    if own := [method for method, changes in plan.by_method.items() if "delta" in changes]:
        message = f"by_method {', '.join(own)!r} has a delta; epsilons are compared at one delta, the plan's"
        raise SettingError(f"{message} (--delta).")
    variants = []
    for name, method in methods.items():
        if name == BASELINE:
            variants.append(Variant(name, method, plan, None, "", {}))
            continue
        targets: Sequence[float | None] = epsilons or [None]
        for epsilon, swept in itertools.product(targets, _combinations(method, sweep)):
            parts = {"epsilon": epsilon} if len(targets) > 1 else {}
            shown = {key: value if _plain(value) else value_text(value) for key, value in swept.items()}
            label, changed = label_of({**parts, **shown}), plan.with_changes(swept)
            variants.append(Variant(name, _with(method, swept), changed, epsilon, label, shown))
    return variants


PROTECTION, EQUAL, BY_GROUP = "protection", "equal", "by group"
"""Name and values of the setting that tells runs with equal groups from those by group."""


def with_equal_groups(variants: Sequence[Variant]) -> list[Variant]:
    """Return the variants, each private one with rates or bounds by group after one with equal groups.

    >>> plan = Plan(rates={"rare": 2.0})
    >>> found = with_equal_groups([Variant("dpsgd", "dpsgd", plan, 3.0, "", {})])
    >>> [(each.setting, each.plan.rates) for each in found]
    [('protection=equal', None), ('protection=by group', {'rare': 2.0})]
    """
    found = []
    for each in variants:
        if each.name == BASELINE or not each.plan.for_method(each.method).groups:
            found.append(each)
            continue
        equal = each.plan.for_method(each.method).without_groups()
        for value, plan in ((EQUAL, equal), (BY_GROUP, each.plan)):
            label = label_of({PROTECTION: value})
            setting = f"{each.setting}, {label}" if each.setting else label
            found.append(replace(each, plan=plan, setting=setting, swept={**each.swept, PROTECTION: value}))
    return found


def automatic_variants(
    method: MethodLike, own: Plan, plan: Plan, epsilons: Sequence[float], num_train: int
) -> list[Variant]:
    """Variants of "auto" at every epsilon; without epsilons, at what the plan's DP-SGD spends.

    Args:
        method: that "auto" stands for.
        own: its plan; a sweep does not change it.
        plan: of the other variants.
        epsilons: targets.
        num_train: examples that the plan's epsilon is computed for.
    """
    own = own.for_method(method)
    policy = own.policy
    if not epsilons:
        spent = plan.for_method(STANDARD).with_usual_noise().resolve(num_train).epsilon("pld")
        return [Variant(AUTO, policy, own, spent, "", {})]
    shown = {epsilon: label_of({"epsilon": epsilon}) if len(epsilons) > 1 else "" for epsilon in epsilons}
    return [Variant(AUTO, policy, own, epsilon, label, {}) for epsilon, label in shown.items()]


def _with(method: MethodLike, swept: Mapping[str, Any]) -> MethodLike:
    """Return the method; if it is a policy object, with its swept settings."""
    policy = found_policy(method)
    if not isinstance(policy, Policy):
        return method
    own = {name: value for name, value in swept.items() if name in _settings(method)}
    changed: Policy = replace(policy, **own)  # type: ignore[type-var]
    return changed


def _plain(value: Any) -> bool:
    return isinstance(value, int | float | str | None)


def _combinations(method: MethodLike, sweep: Sweep) -> Iterator[dict[str, Any]]:
    has = {*_PLAN, *_settings(method)}
    taken = {name: list(dict.fromkeys(values)) for name, values in sweep.items() if name in has}
    for values in itertools.product(*taken.values()):
        yield dict(zip(taken, values, strict=True))


def _settings(method: MethodLike) -> set[str]:
    return {each.name for each in fields(method_named(method).policy)}  # type: ignore[arg-type]


def _check_sweep(methods: Mapping[str, MethodLike], sweep: Sweep) -> None:
    taken = {*_PLAN}.union(*(_settings(each) for name, each in methods.items() if name != BASELINE))
    for name, values in sweep.items():
        if name in _NOT_SWEPT:
            raise SettingError(f"sweep {name!r}: it cannot be swept; {_NOT_SWEPT[name]}.")
        if name not in taken:
            owners = all_settings().get(name)
            if owners is None:
                raise unknown_name("setting to sweep", name, taken)
            raise SettingError(
                f"sweep {name!r}: it is a setting of {', '.join(owners)}, and none of them is compared; add "
                f"one, or sweep another: {', '.join(sorted(taken))}."
            )
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise SettingError(f"sweep {name!r}: {values!r}; expected a list of values, such as [1.0, 2.0].")


def parse_sweep(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Parse settings to sweep from texts such as "clipping_bound=1,2,5", which may be cut at their commas.

    Raises:
        SettingError: a text without "=", an unknown setting, or a value of another type.

    >>> parse_sweep(["clipping-bound=1,2", "5", "epochs=10"])
    {'clipping_bound': [1.0, 2.0, 5.0], 'epochs': [10.0]}
    """
    sweep: dict[str, list[Any]] = {}
    kinds, name = _kinds(), ""
    for text in itertools.chain.from_iterable(map(names, texts)):
        head, equals, value = text.rpartition("=")
        if equals:
            name = head.strip().replace("-", "_")
        if not name or not value.strip():
            raise SettingError(f"sweep {text!r}; expected setting=values, such as clipping_bound=1,2,5.")
        if name not in kinds and name not in _NOT_SWEPT:
            raise unknown_name("setting to sweep", name, kinds)
        sweep.setdefault(name, []).append(_parse_value(name, value.strip(), kinds.get(name, str)))
    return sweep


def _parse_value(name: str, text: str, hint: Any) -> Any:
    kinds = get_args(hint) or (hint,)
    if type(None) in kinds and text.lower() == "none":
        return None
    for kind in (bool, int, float, str):
        if kind in kinds:
            try:
                return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
            except (ValueError, KeyError):
                continue
    expected = getattr(hint, "__name__", hint)
    raise SettingError(f"sweep {name!r}: {text!r}; expected values of type {expected}.")


def _kinds() -> dict[str, Any]:
    """Setting -> its type, of the plan and of all known methods."""
    hints = [get_type_hints(policy) for policy in known_policies().values()]
    known, of_plan = dict(ChainMap(*hints)), get_type_hints(Plan)
    return {name: known[name] for name in all_settings() if name in known} | {
        name: of_plan[name] for name in _PLAN
    }


_PLAN = tuple(each.name for each in fields(Plan) if each.name not in _NOT_SWEPT)
"""Fields of a plan that can be swept."""
