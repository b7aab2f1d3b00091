"""A run's folder before its first step: settings, ledger, and preprocessing that was paid for and drawn."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from equidp._files import check_writable, sync_folder, write_whole
from equidp.accounting.releases import charge_releases
from equidp.errors import SettingError
from equidp.kernel.ledger_file import LedgerFile
from equidp.runs import layout
from equidp.runs.config import PREPROCESSING, TrainConfig
from equidp.runs.prepare import Prepared, open_budget


def begin(prepared: Prepared, folder: str | os.PathLike[str]) -> Prepared:
    """Makes the folder with all that training in it needs; whole or not at all.

    Private preprocessing is drawn here, once, after its cost is in the run's ledger and its budget. A run
    that is stopped before its folder is there never was: what a budget paid for it stays paid.

    Returns:
        What training begins with.

    Raises:
        SettingError: the folder holds something, or cannot be made.
        BudgetError: private preprocessing does not fit; it was not drawn.
    """
    target = Path(folder)
    check_new(target)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        draft.mkdir(parents=True)
        if target.exists():
            draft.chmod(target.stat().st_mode)
        prepared, facts = _paid_and_drawn(prepared, draft)
        content = {
            "config": prepared.config.to_dict(),
            "plan": prepared.plan.to_dict(),
            "facts": facts,
        }
        write_whole(draft / layout.NOTICE, layout.notice(prepared.config).encode())
        write_whole(draft / layout.CONFIG, layout.salted(content).encode())
        if prepared.encoder is not None:
            write_whole(
                draft / layout.ENCODER, layout.salted(json.loads(prepared.encoder.to_json())).encode()
            )
        os.replace(draft, target)  # replaces an empty folder
        sync_folder(target.parent)
    except OSError as error:
        raise SettingError(
            f"the folder {os.fspath(target)!r} cannot be made ({error.strerror}); choose another place."
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return prepared


def _paid_and_drawn(prepared: Prepared, draft: Path) -> tuple[Prepared, dict[str, Any]]:
    """The run with its preprocessing, and its facts; the ledger in the draft has paid for the former."""
    config, budget_id = prepared.config, {}
    release = config.releases(prepared.plan.delta).get(PREPROCESSING)
    with ExitStack() as stack:
        budget = None if config.budget is None else stack.enter_context(open_budget(config, config.budget))
        if budget is not None:
            budget_id = {"budget_id": budget.id}
        if release is not None:
            if budget is not None:
                budget.for_data(prepared.split.train.source)
            ledger = stack.enter_context(LedgerFile(draft / layout.LEDGER, run=run_name(config)))
            charge_releases([release], ledger, budget)
            split, encoder = config.load_privately(release)
            prepared = replace(prepared, split=split, encoder=encoder)
    return prepared, {**prepared.facts, **budget_id}


def run_name(config: TrainConfig) -> str:
    """What a ledger calls the run."""
    return f"train {config.method} on {config.source().name}"


def check_new(folder: Path) -> None:
    """Raises unless a run may begin here."""
    if folder.is_dir() and not any(folder.iterdir()):
        check_writable(folder / layout.CONFIG)
    elif folder.exists():
        begun = (folder / layout.CONFIG).exists()
        resume = f"Go on with it by --resume {folder}, or choose" if begun else "Choose"
        raise SettingError(f"{os.fspath(folder)!r} exists and is not empty. {resume} another place.")
