"""Session: a run as requested, chosen, begun and trained in a folder; `train` is `equidp train`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import torch

from equidp.advice.advise import Advice
from equidp.advice.chosen_plan import (
    ASKED,
    PUBLISHED,
    RECOMMENDED,
    RULE,
    check_published,
    choose_plan,
    source_to_read,
)
from equidp.data.table import binning_of
from equidp.errors import BudgetError, DataError, EquidpError, SettingError
from equidp.policies.methods import (
    MethodLike,
    check_not_fixed,
    ignored_sentences,
    method_named,
)
from equidp.policies.setting import settings_of
from equidp.policies.table import AUTO, BASELINE, STANDARD
from equidp.runs.begin import Loaded, PreparedRun, begin_or_continue, check_new, is_stopped
from equidp.runs.config import TrainConfig
from equidp.runs.folder import RunFolder
from equidp.runs.releases import take_releases
from equidp.runs.run_file import RunFile, load_methods
from equidp.runs.saved import FinishedRun, open_run
from equidp.runs.train import train as train_in_folder
from equidp.tables.recipe import Recipe
from equidp.training.device import CPU, chosen_device
from equidp.training.plan import Plan
from equidp.training.trainer import Callback

_LEVEL = ("epsilon", "risk", "accountant")
"""Options of a plan that request privacy."""


def train(
    data: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    method: MethodLike | None = None,
    config: str | os.PathLike[str] | Recipe | None = None,
    columns: Mapping[str, Mapping[str, Any]] = {},
    device: str = "cpu",
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> FinishedRun:
    """Train one model privately in a folder and write its model card, as `equidp train` does.

    The same call continues a run that was stopped. Samples and noise come from the operating system.

    Args:
        data: a named dataset, a CSV or Parquet file, or a source by import path.
        out: folder of the run: new, empty, or of a stopped run with the same settings.
        method: name, import path, or policy of equidp. "auto", the default, is the method with the best
            results on this kind of data.
        config: run.toml, the file of all options, or a recipe proposed by `inspect`. Options passed here
            override it.
        columns: column name -> fields of `Column` that describe its cells, such as {"kind": "text"}.
        device: device for training: "cpu", "cuda", "mps" or "auto".
        callbacks: callbacks of the run.
        options: fields of run.toml, such as target, group and person of [table], epsilon and ledger of
            [privacy], epochs and seed of [training], and title of [card].

    Raises:
        SettingError, DataError, ModelError: raised before anything is spent.
        BudgetError: the run exceeds the limit of its ledger.
        TrainingStopped: by Ctrl-C or SIGTERM.

    Example:
        >>> import equidp
        >>> place = getfixture("tmp_path") / "run"
        >>> run = equidp.train("digits", epsilon=3, out=place, epochs=1, model="logistic", batch_size=256)
        >>> round(run.epsilon(), 1), run.verify().failed
        (3.0, ())
    """
    given = {"columns": columns, **options}
    if method is not None:
        name, of_policy = _method_by_name(method)
        given = {"method": name, **of_policy, **given}
    session = Session.of(RunFile.of(config, given=given), data)
    place = chosen_device(device)
    chosen, prepared = session.begin(out, place)
    for sentence in chosen.ignored:
        warnings.warn(sentence, stacklevel=2)
    with noting_how_to_continue(out):
        train_in_folder(out, callbacks=callbacks, prepared=prepared, device=place, trust_code=True)
    return open_run(out, trust_code=True)


def _method_by_name(method: MethodLike) -> tuple[str, Mapping[str, Any]]:
    """Return a method's name, and the settings of a policy, by which the folder keeps it."""
    if isinstance(method, str):
        load_methods([method])
        return method, {}
    plain = Plan(method=method).to_plain()
    return plain["method"], plain["method_settings"]


class ChosenConfig(NamedTuple):
    """Configuration of a run with all that was chosen for it.

    Attributes:
        config: configuration of the run.
        loaded: data of the run, or None if the inputs are features of it.
        ignored: sentences on settings that were given, and that the method does not have.
        advice: rules that chose it. None: other settings than recommended.
    """

    config: TrainConfig
    loaded: Loaded | None
    ignored: tuple[str, ...]
    advice: Advice | None = None


@final
@dataclass(frozen=True)
class Session:
    """A run as requested.

    Attributes:
        config: configuration of the run, from only what was given.
        given: settings of the plan and of methods that were given, by name.
        method: its name; or "auto": it is chosen.
        settings: settings to start from, a name of `equidp.advice.chosen_plan.SETTINGS`.
    """

    config: TrainConfig
    given: Mapping[str, Any]
    method: str = AUTO
    settings: str = RECOMMENDED

    @classmethod
    def of(cls, run: RunFile, data: str | os.PathLike[str] | None = None, *read: str | Path | None) -> Self:
        """Return the session of the options of a run.

        Args:
            run: options of the run.
            data: data for training and testing, which overrides the options.
            read: files that are also read. The ledger must be another file.

        Raises:
            SettingError: an option that cannot be, or a method without a level of privacy.
        """
        method = run.training.get("method", AUTO)
        settings = run.training.get("settings", RECOMMENDED)
        given, decision = run.options, run.decision
        execution = {name: given.pop(name) for name in ("engine", "checkpoint_seconds") if name in given}
        released = take_releases(given, base_rate_threshold=decision.at_counted_rate)
        level = {name: given.pop(name) for name in _LEVEL if name in given}
        plan = Plan(method=STANDARD if method == AUTO else method).with_changes(
            {**given, **level}, releases=released
        )
        _check_method(method, settings, noisy=plan.decides_noise)
        config = TrainConfig(
            run.run_data(data),
            plan,
            run.ledger(data, *read),
            run.training.get("metric"),
            decision.decision_to_train(),
            run.card_texts,
            **execution,
        )
        if settings == PUBLISHED:
            check_published(config.data.source())
        return cls(config, given, method, settings)

    def choose(self) -> ChosenConfig:
        """Fill in the settings, and the method if it is "auto"."""
        wanted, given = self.config, self.given
        data, source = wanted.data, wanted.data.source()
        level = {name: value for name in _LEVEL if (value := getattr(wanted.plan, name)) is not None}
        if wanted.plan.run_epsilon is not None:
            level["epsilon"] = wanted.plan.run_epsilon
        binning = binning_of(source_to_read(source, given, self.settings))
        loaded = replace(wanted, data=replace(data, binning=binning)).load()
        train = loaded[0].train
        chosen = choose_plan(source, train, data.seed, given, self.settings, method=self.method, level=level)
        taken = chosen.method if self.method == AUTO else self.method
        check_not_fixed(given, taken)
        reasons = () if chosen.advice is None else tuple(chosen.advice.reasons)
        inputs = {
            "features": data.features or chosen.features,
            "binning": data.binning or chosen.binning,
        }
        by_rules = self.method == AUTO and chosen.advice is not None
        names = (
            *(Plan.names() - {"method"}),
            *inputs,
            *(each.name for each in settings_of(method_named(taken).policy)),
        )
        origins = {name: chosen.origin(name, taken) for name in names}
        asked = [name for name in _LEVEL if getattr(wanted.plan, name) != getattr(Plan, name)]
        origins |= {**dict.fromkeys(asked, ASKED), "method": RULE if by_rules else ASKED}
        plan = chosen.plan.with_changes(method=taken)
        if not plan.private and "noise_multiplier" not in given:
            plan = plan.with_changes(noise_multiplier=None)
        config = replace(
            wanted,
            data=replace(data, features=inputs["features"], binning=inputs["binning"]),
            plan=plan.with_changes(
                level, epsilon_by_group=plan.epsilon_by_group, releases=wanted.plan.releases
            ),
            card=replace(wanted.card, reasons=reasons, origins=origins),
        )
        same_inputs = inputs["features"] == data.features
        return ChosenConfig(
            config, loaded if same_inputs else None, ignored_sentences(given, [taken]), chosen.advice
        )

    def begin(
        self, folder: str | os.PathLike[str], device: torch.device = CPU
    ) -> tuple[ChosenConfig, PreparedRun | None]:
        """Begin the run in a folder, for `equidp.runs.train.train`. None: it exists, and is continued.

        Raises:
            SettingError: the folder holds something else.
        """
        if not is_stopped(folder):
            check_new(folder)
        chosen = self.choose()
        return chosen, begin_or_continue(chosen.config, folder, device, chosen.loaded)


def _check_method(method: str, settings: str, *, noisy: bool) -> None:
    """Reject a method that has no published settings, or that lacks a level of privacy.

    Args:
        method: name, or "auto".
        settings: settings to start from.
        noisy: whether noise is given, or follows from a target.
    """
    if settings == PUBLISHED and method == AUTO:
        raise SettingError(
            f"settings={PUBLISHED!r} with method {AUTO!r}, which takes recommended settings; name a "
            f"method, such as {STANDARD}."
        )
    if settings != PUBLISHED and method != BASELINE and not noisy:
        raise SettingError(
            f"method {method!r} without a level of privacy; give epsilon, risk or noise_multiplier."
        )


@contextmanager
def noting_how_to_continue(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Add to a run's error the command that continues the run, if there is one."""
    place = RunFolder(folder)
    try:
        yield
    except (OSError, EquidpError) as error:
        unwritten = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        in_use = isinstance(error, BudgetError) and error.field == "lock"
        other = isinstance(error, DataError) and error.field in ("data", "method", "model")
        if (unwritten or in_use or other) and is_stopped(folder):
            error.add_note(place.how_to_continue())
        raise
