"""A run's folder before its first step: settings, ledger, and preprocessing that was paid for and drawn."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from equidp._files import check_folder, sync_folder, write_whole
from equidp.accounting.releases import COUNTS, PREPROCESSING
from equidp.data.people import first_rows
from equidp.errors import SettingError
from equidp.evaluation.predictions import base_rate_cut
from equidp.kernel.ledger import Ledger, Payment
from equidp.kernel.noise import SystemRandomness
from equidp.ledger.file import LedgerFile
from equidp.runs import layout
from equidp.runs.config import TrainConfig
from equidp.runs.prepare import Prepared, open_budget
from equidp.tables.release import balanced_weights, private_counts

_DRAFT = ".equidp-draft-"


def begin(prepared: Prepared, folder: str | os.PathLike[str]) -> Prepared:
    """Make the folder with all files that training in it needs; whole or not at all.

    An empty folder is filled, its settings last. Drafts that a killed process left in it are ignored.

    Private preprocessing and class counts are paid for and drawn here, and kept in the folder; copies of the
    folder reuse them. A run that is stopped before its folder is complete leaves none: its charge to a budget
    stays.

    Returns:
        The run as training begins it.

    Raises:
        SettingError: the folder is not empty, or cannot be made.
        BudgetError: the releases do not fit into the budget; nothing was drawn.
    """
    check_new(folder)
    target = Path(os.path.realpath(folder))
    there = target.exists()
    draft = (target if there else target.parent) / f"{_DRAFT}{secrets.token_hex(8)}"
    try:
        draft.mkdir(parents=True)
        prepared, facts = _paid_and_drawn(prepared, draft)
        content = {
            "config": prepared.config.to_dict(),
            "plan": prepared.plan.to_dict(),
            "facts": facts,
        }
        write_whole(draft / layout.NOTICE, layout.notice(prepared.config))
        write_whole(draft / layout.CONFIG, layout.salted_json(content).encode())
        if prepared.encoder is not None:
            write_whole(
                draft / layout.ENCODER, layout.salted_json(json.loads(prepared.encoder.to_json())).encode()
            )
        if there:  # the folder stays: it may be where one works, or a disk of its own
            (target / layout.NOTICE).touch(exist_ok=False)  # of two runs that begin at once, one does
            for name in sorted(os.listdir(draft), key=lambda name: name == layout.CONFIG):
                os.replace(draft / name, target / name)
            sync_folder(target)
        else:
            os.replace(draft, target)
            sync_folder(target.parent)
    except OSError as error:
        raise SettingError(
            f"the folder {os.fspath(target)!r} cannot be made ({error.strerror}); choose another place."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return prepared


def _paid_and_drawn(prepared: Prepared, draft: Path) -> tuple[Prepared, dict[str, Any]]:
    """Return the run with preprocessing and class counts, paid for in the draft's ledger, and its facts."""
    config, further = prepared.config, {}
    releases = config.releases(prepared.plan.delta)
    releases = {name: releases[name] for name in (PREPROCESSING, COUNTS) if name in releases}
    with ExitStack() as stack:
        budget = None if config.budget is None else stack.enter_context(open_budget(config, config.budget))
        if budget is not None:
            further["budget_id"] = budget.id
        payments: dict[str, Payment] = {}
        if releases:
            train = prepared.split.train
            ledger: Ledger = stack.enter_context(
                LedgerFile(draft / layout.LEDGER, run=run_name(config), dated=config.choose is None)
            )
            if budget is not None:
                budget.for_data(train.source, train.unit)
                ledger = budget.ledger(ledger)
            ledger.take_unit(train.unit)
            ledger.promise(prepared.stated)
            payments = {name: ledger.pay(name, each.noise_multiplier) for name, each in releases.items()}
        if PREPROCESSING in payments:
            split, encoder = config.load_privately(payments[PREPROCESSING])
            prepared = replace(prepared, split=split, encoder=encoder)
        if COUNTS in payments:
            prepared, counts = _count_classes(prepared, payments[COUNTS].draw())
            write_whole(draft / layout.COUNTS, (json.dumps(counts, indent=2) + "\n").encode())
    return prepared, {**prepared.facts, **further}


def _count_classes(prepared: Prepared, noise_multiplier: float) -> tuple[Prepared, dict[str, float]]:
    """Return noisy counts by class, and the run with the weights and the threshold that follow from them."""
    train = prepared.split.train
    counts = private_counts(
        first_rows(train).targets.numpy(),
        train.num_classes,
        noise_multiplier=noise_multiplier,
        randomness=SystemRandomness(),
    )
    if prepared.config.balanced:
        weights = balanced_weights(counts, noise_multiplier).tolist()
        by_class = dict(zip(train.class_names, weights, strict=True))
        prepared = replace(prepared, plan=prepared.plan.with_class_weight(by_class))
    named = dict(zip(train.class_names, counts.tolist(), strict=True))
    if prepared.config.cut_at_base_rate:
        cut = base_rate_cut(prepared.config.run_cut.positive, named)
        prepared = replace(prepared, config=replace(prepared.config, cut=cut))
    return prepared, named


def run_name(config: TrainConfig) -> str:
    """Name of the run in a ledger."""
    return f"train {config.method} on {config.source().name}"


def check_new(folder: str | os.PathLike[str]) -> None:
    """Raise a SettingError unless the folder is empty or can be made, so that a run may begin there."""
    check_folder(folder)
    place = Path(folder)
    if place.exists() and any(not name.startswith(_DRAFT) for name in os.listdir(place)):
        what = f"{os.fspath(folder)!r} exists and is not empty"
        if (place / layout.CONFIG).exists():
            continued = layout.resume_command(place)
            raise SettingError(f"{what}. Choose another place, or continue the run there:\n{continued}")
        raise SettingError(f"{what}. Choose another place.")
