"""Folder of a run before its first step: settings, ledger, and releases that were paid for and drawn."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from equidp._files import check_folder, sync_folder, write_whole
from equidp.errors import SettingError
from equidp.kernel.ledger import Ledger
from equidp.ledger.file import LedgerFile
from equidp.runs import layout
from equidp.runs.prepare import PreparedRun
from equidp.runs.releases.release import Preparation

_DRAFT = ".equidp-draft-"


def begin(prepared: PreparedRun, folder: str | os.PathLike[str]) -> PreparedRun:
    """Make the folder with all files that training in it needs; whole or not at all.

    An empty folder is filled, its settings last. Drafts that a killed process left in it are ignored.

    Releases before the first step, such as class counts, are paid for and drawn here, and kept in the folder;
    copies of the folder reuse them. A run that is stopped before its folder is complete leaves none: its
    charge to a budget stays.

    Returns:
        The run as it was written, for `train`.

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
        prepared = _pay_and_draw(prepared, draft)
        content = {
            "config": prepared.config.to_plain(),
            "plan": prepared.plan.to_plain(),
            "facts": prepared.facts,
        }
        write_whole(draft / layout.NOTICE, layout.notice(prepared.config, prepared.plan))
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
            f"the folder {os.fspath(target)!r} cannot be made ({error.strerror}); choose another place.",
            field="folder",
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return prepared


def _pay_and_draw(prepared: PreparedRun, draft: Path) -> PreparedRun:
    """Return the run with its releases before the first step, paid for in the draft's ledger and drawn."""
    config = prepared.config
    events = config.release_events(prepared.plan.delta)
    releases = [each for each in config.all_releases if each.name in events and not each.after_training]
    with ExitStack() as stack:
        budget = None if config.budget is None else stack.enter_context(config.budget.open(config.name))
        if budget is not None:
            prepared = replace(prepared, budget_id=budget.id)
        if not releases:
            return prepared
        train = prepared.split.train
        ledger: Ledger = stack.enter_context(LedgerFile(draft / layout.LEDGER, run=config.name))
        if budget is not None:
            budget.for_data(train.source, train.unit)
            ledger = budget.ledger(ledger)
        ledger.take_unit(train.unit)
        ledger.promise(prepared.stated)
        payments = [ledger.pay(each.name, events[each.name].noise_multiplier) for each in releases]
        whole = Preparation(
            config.data.source(),
            config.data.seed,
            prepared.split,
            prepared.encoder,
            prepared.plan,
            config.decision,
        )
        drawn = whole
        for each, payment in zip(releases, payments, strict=True):
            drawn = each.draw(drawn, payment, draft)
    same = drawn.split is whole.split and drawn.plan is whole.plan
    return replace(
        prepared,
        config=config if drawn.decision == whole.decision else config.with_decision(drawn.decision),
        plan=drawn.plan,
        split=drawn.split,
        encoder=drawn.encoder,
        trainer=prepared.trainer if same else None,
    )


def check_new(folder: str | os.PathLike[str]) -> None:
    """Raise a SettingError unless the folder is empty or can be made, so that a run may begin there."""
    check_folder(folder)
    place = Path(folder)
    if place.exists() and any(not name.startswith(_DRAFT) for name in os.listdir(place)):
        what = f"{os.fspath(folder)!r} exists and is not empty"
        if (place / layout.MANIFEST).exists():
            raise SettingError(f"{what}: it holds a finished run. Choose another place.", field="folder")
        if (place / layout.CONFIG).exists():
            raise SettingError(
                f"{what}: it holds a run that was stopped. Choose another place for a new run. "
                f"{layout.how_to_continue(place)}",
                field="folder",
            )
        raise SettingError(f"{what}. Choose another place.", field="folder")
