"""Names and checksums of a run's files."""

from __future__ import annotations

import hashlib
import json
import os
import textwrap
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from equidp._files import command_line, write_whole
from equidp._parts import is_import_path
from equidp.accounting.limit import merge_entries
from equidp.data.dataset import DataSplit
from equidp.digest import object_digest
from equidp.errors import DataError, EquidpError
from equidp.kernel.epsilon import Entries
from equidp.ledger.format import event_of, plain
from equidp.runs.config import TrainConfig
from equidp.runs.releases import (
    RELEASES,
    CountsRelease,
    IndividualRelease,
)
from equidp.runs.releases.preprocessing import PreprocessingRelease
from equidp.tables.encode import TableEncoder
from equidp.training.plan import ResolvedPlan

CONFIG, MODEL = "config.json", "model.safetensors"
ENCODER, COUNTS = PreprocessingRelease.file, CountsRelease.file
RELEASED = IndividualRelease.file
CARD, PAGE, RECORD, MANIFEST = "card.md", "card.html", "record.parquet", "files.sha256"
SETTINGS, GIVEN = "settings.json", "shareable.sha256"
LEDGER, SEAL, CHECKPOINTS, NOTICE = "ledger", "ledger.seal", "checkpoint-*.pt", "SHARING.txt"
HISTORIES = "sensitive-histories-*"

SHAREABLE, CONFIDENTIAL = "Shareable", "Confidential"
RESTRICTED = "Shareable if its contents may be public"
"""Kinds of a run's files."""

_SHAPE = (
    " It shows the number of inputs, which follows from the categories and missing values of the training "
    "rows where they came from the data: the guarantee does not cover that."
)

FILES = {
    PAGE: (SHAREABLE, "the model card." + _SHAPE),
    CARD: (SHAREABLE, "the same card as text." + _SHAPE),
    MODEL: (SHAREABLE, "the trained weights." + _SHAPE),
    **{each.file: (SHAREABLE, each.contents) for each in RELEASES.values() if each.file != ENCODER},
    SETTINGS: (
        SHAREABLE,
        "settings, names of columns, groups and classes, and what was spent, without paths and fingerprints: "
        "equidp predict works from it, the weights, the card and, for tables, preprocessing.json." + _SHAPE,
    ),
    GIVEN: (
        SHAREABLE,
        "checksums of the shareable files, without this one; sha256sum -c checks them.",
    ),
    NOTICE: (SHAREABLE, "this list, which follows from settings alone."),
    CHECKPOINTS: (
        RESTRICTED,
        "the last two states of the run. They follow from releases alone; how many steps lie between them "
        "follows from how long steps took, as for the ledger.",
    ),
    LEDGER: (
        RESTRICTED,
        "what was spent, and on which day. How many steps a line charges follows from how long steps took, "
        "and so from the sizes of samples, which are private: the guarantee does not cover timing. For an "
        "auditor, not for everyone; the card has what recomputes epsilon.",
    ),
    SEAL: (RESTRICTED, "the ledger's length and last checksum; goes with the ledger."),
    MANIFEST: (
        RESTRICTED,
        "checksums of all finished files, for those who have all of them. Those that tell of the data hold a "
        "random salt, so that a checksum confirms no guess of a row.",
    ),
    ENCODER: (
        RESTRICTED,
        "categories, edges of intervals, means and deviations of the training rows, which the guarantee does "
        "not cover. Predictions for new rows need it.",
    ),
    RECORD: (
        CONFIDENTIAL,
        "exact metrics of the test examples by epoch and group, of groups of few people as well.",
    ),
    CONFIG: (
        CONFIDENTIAL,
        "all settings, with paths of this machine, and a fingerprint of the data: it confirms a guess of one "
        "row to someone who knows the others.",
    ),
    HISTORIES: (
        CONFIDENTIAL,
        "how much of the sensitivity each training example used in each step so far, of a run with "
        "--individual: private training data. Deleted when the run is complete.",
    ),
}
"""Each file of a run's folder -> its kind (shareable or not), and a description."""

COPIES = (
    "A run that was stopped can be resumed once. If its folder was copied and both are resumed, they give "
    "two models, and each card states the epsilon of one: someone who gets both learns what both "
    "epsilons allow. A budget (--budget) is charged for both."
)
"""Advice on a run that is resumed twice, from copies of its folder."""


def _without_privacy(plan: ResolvedPlan) -> bool:
    """True for a run whose steps have no noise, so that no guarantee holds for anything it writes."""
    event = plan.step_event()
    return 0 in (event.noise_multiplier, event.statistics_noise)


def files(config: TrainConfig, plan: ResolvedPlan) -> dict[str, tuple[str, str]]:
    """`FILES` for a run of this configuration; without privacy, all but the notice is confidential."""
    if _without_privacy(plan):
        own = (NOTICE, GIVEN)
        return {name: (kind if name in own else CONFIDENTIAL, what) for name, (kind, what) in FILES.items()}
    drawn = {each.file: (SHAREABLE, each.contents) for each in config.all_releases}
    if config.preprocessing is None:
        return FILES | drawn
    return {name: (kind, what.removesuffix(_SHAPE)) for name, (kind, what) in FILES.items()} | drawn


def notice(config: TrainConfig, plan: ResolvedPlan) -> str:
    """Text of the notice in a run's folder: which of its files are shareable."""
    lines = ["Files that a run may write here. The folder as a whole is confidential.", ""]
    headings = [SHAREABLE, RESTRICTED, CONFIDENTIAL]
    if _without_privacy(plan):
        why = (
            "This run is without privacy: its model was trained without noise and may reveal its training "
            "data. Nothing of it is for sharing but this notice."
        )
        lines, headings = [textwrap.fill(why, 88), ""], [CONFIDENTIAL]
    for heading in headings:
        listed = [f"{name}: {what}" for name, (kind, what) in files(config, plan).items() if kind == heading]
        texts = [textwrap.fill(text, 88, subsequent_indent="    ") for text in listed]
        lines += [f"{heading}:", "", *texts, ""]
    return "\n".join([*lines, textwrap.fill(COPIES, 88), ""])


def resume_command(place: Path) -> str:
    """Command that continues a run, to be printed on a separate line."""
    trusting = []
    with suppress(OSError, ValueError, LookupError, TypeError):
        trusting = ["--trust-code"] if _own_parts(json.loads((place / CONFIG).read_text())) else []
    return command_line("equidp", "train", "--resume", place, *trusting)


def how_to_continue(place: Path) -> str:
    """Command that continues a run which was stopped, after a sentence."""
    return f"To continue:\n{resume_command(place)}"


def refuse_unfinished(place: Path) -> NoReturn:
    """Raise a DataError that says how to continue a run which was stopped."""
    raise DataError(
        f"the run in {os.fspath(place)!r} is not finished. {how_to_continue(place)}", field="folder"
    )


def new_salt() -> str:
    """Salt of 128 random bits, in hex, for a file whose checksum must not confirm guesses of its content."""
    return os.urandom(16).hex()


def salted_json(content: dict[str, Any]) -> str:
    """JSON of the content with a random salt, which readers ignore."""
    return json.dumps({**content, "salt": new_salt()}, indent=2)


def manifest(place: Path, config: TrainConfig) -> str:
    """Lines of SHA-256 and name, as sha256sum reads them, one for each finished file of the run."""
    own = [each.file for each in config.all_releases]
    names = (CONFIG, ENCODER, COUNTS, MODEL, RELEASED, RECORD, PAGE, CARD, SETTINGS)
    return _checksums(place, dict.fromkeys((*names, *own)))


def manifest_of_given(place: Path, config: TrainConfig, plan: ResolvedPlan) -> str:
    """Lines of SHA-256 and name of the shareable files, without this manifest itself."""
    names = [name for name, (kind, _) in files(config, plan).items() if kind == SHAREABLE and name != GIVEN]
    return _checksums(place, names)


def _checksums(place: Path, names: Iterable[str]) -> str:
    there = [name for name in names if (place / name).exists()]
    return "".join(f"{file_digest(place / name)}  {name}\n" for name in there)


def read_checksums(lines: str) -> list[tuple[str, str]]:
    """Return (name, SHA-256) of each line of a list of checksums."""
    return [(name, digest) for digest, _, name in (line.partition("  ") for line in lines.splitlines())]


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as sha256sum prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def settings_to_give(
    config: TrainConfig, plan: ResolvedPlan, facts: dict[str, Any], entries: Entries
) -> dict[str, Any]:
    """Shareable part of a run's configuration: all but paths, its budget and the fingerprint of its data."""
    name = Path(config.data.name)
    data = replace(config.data, name=name.name) if name.is_absolute() else config.data
    left_out = ("sensitive_data_sha256", "budget_id")
    return {
        "config": replace(config, data=data, budget=None).to_plain(),
        "plan": plan.to_plain(),
        "facts": {name: value for name, value in facts.items() if name not in left_out},
        "entries": [[plain(event), steps] for event, steps in merge_entries(*entries)],
    }


def write_last(
    place: Path, config: TrainConfig, plan: ResolvedPlan, facts: dict[str, Any], entries: Entries
) -> None:
    """Write the last files of a finished run: the shareable settings, and both manifests."""
    content = settings_to_give(config, plan, facts, entries)
    write_whole(place / SETTINGS, (json.dumps(content, indent=2) + "\n").encode())
    write_whole(place / GIVEN, manifest_of_given(place, config, plan))
    write_whole(place / MANIFEST, manifest(place, config))


def is_given(place: Path) -> bool:
    """Return True for a folder with a run's shareable files, without the run's own configuration."""
    return not (place / CONFIG).exists() and (place / SETTINGS).exists()


def read_given_entries(place: Path) -> Entries:
    """Entries that a run spent, read from a folder with its shareable files.

    Raises:
        DataError: the file is not as equidp wrote it.
    """
    try:
        entries = json.loads((place / SETTINGS).read_text())["entries"]
        return tuple((event_of(event), int(steps)) for event, steps in entries)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{SETTINGS} in {os.fspath(place)!r} is not as equidp wrote it; bring it back.",
            field=SETTINGS,
        ) from error


def check_given(place: Path) -> None:
    """Raise a DataError unless the shareable files present in a folder are as equidp wrote them."""
    try:
        lines = (place / GIVEN).read_text()
    except OSError as error:
        raise DataError(
            f"{GIVEN} in {os.fspath(place)!r} cannot be read ({error.strerror}); it lists checksums of "
            "the shareable files. Bring it from the folder of the run.",
            field=GIVEN,
        ) from error
    listed = dict(read_checksums(lines))
    there = {name: digest for name, digest in listed.items() if (place / name).exists()}
    changed = [name for name, digest in there.items() if file_digest(place / name) != digest]
    if changed:
        raise DataError(
            f"{', '.join(changed)} in {os.fspath(place)!r}: not as equidp wrote it ({GIVEN} lists "
            "checksums); bring it from the folder of the run.",
            field=", ".join(changed),
        )


def read_text(place: Path, name: str) -> str:
    """Read the text of a file that training writes last; a DataError has advice."""
    try:
        return (place / name).read_text()
    except OSError as error:
        raise DataError(
            f"{name} in {os.fspath(place)!r} cannot be read ({error.strerror}); bring it back, or write it "
            f"again:\n{resume_command(place)}",
            field=name,
        ) from error


def check_files(place: Path, config: TrainConfig) -> None:
    """Raise a DataError that names the files of the run that differ from its manifest, if any."""
    written = set(read_text(place, MANIFEST).splitlines())
    now = set(manifest(place, config).splitlines())
    changed = sorted({line.split("  ", 1)[-1] for line in written ^ now})
    if changed:
        are, them = ("is", "it") if len(changed) == 1 else ("are", "them")
        raise DataError(
            f"{', '.join(changed)} in {os.fspath(place)!r} {are} not as equidp wrote {them} ({MANIFEST} "
            f"lists checksums); bring {them} back.",
            field=", ".join(changed),
        )


def read_encoder(place: Path, config: TrainConfig) -> TableEncoder | None:
    """Read the encoder of the run's columns; None if it is not kept, or follows from the data.

    Raises:
        DataError: the encoder's file is missing though it was paid for, or not as equidp wrote it.
    """
    try:
        return TableEncoder.from_json((place / ENCODER).read_text())
    except FileNotFoundError as error:
        if config.preprocessing is None:
            return None
        raise config.preprocessing.missing(place) from error
    except DataError as error:
        raise DataError(f"{ENCODER} in {os.fspath(place)!r}: {error}", field=ENCODER) from error
    except Exception as error:
        raise DataError(
            f"{ENCODER} in {os.fspath(place)!r} is not as equidp wrote it ({type(error).__name__}); bring it "
            "back.",
            field=ENCODER,
        ) from error


def read_counts(place: Path) -> dict[str, float]:
    """Read the number of training examples of each class, released with noise; empty if not released."""
    path = place / COUNTS
    try:
        counts: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
        return counts
    except ValueError as error:
        raise DataError(
            f"{os.fspath(path)!r} is not as equidp wrote it; bring it back.", field=path.name
        ) from error


def read_released(place: Path) -> list[dict[str, Any]]:
    """Read the individual privacy of groups that the run released; empty if it did not release it."""
    try:
        released: list[dict[str, Any]] = json.loads((place / RELEASED).read_text())
        return released
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise DataError(
            f"{RELEASED} in {os.fspath(place)!r} is not as equidp wrote it; bring it back.",
            field=RELEASED,
        ) from error


def check_folder_of_run(place: Path) -> None:
    """Raise a DataError unless a place is a folder with the settings of a run, finished or not."""
    if not place.exists():
        raise DataError(f"there is no folder {os.fspath(place)!r}; check the path.", field="folder")
    if not place.is_dir() or not any((place / name).exists() for name in (SETTINGS, CONFIG)):
        kind = "a folder without a run" if place.is_dir() else "a file"
        raise DataError(
            f"{os.fspath(place)!r} is {kind}; expected a folder that equidp train --out made, or a copy of "
            "its shareable files.",
            field="folder",
        )


def read_config(place: Path, *, trust_code: bool = False) -> tuple[TrainConfig, ResolvedPlan, dict[str, Any]]:
    """Read the configuration of a run, its plan, and the facts that followed.

    Args:
        place: folder of the run.
        trust_code: import a method and a model of the user's that the folder names.

    Raises:
        DataError: no run; one that cannot be read; or code that the folder names and is not trusted.
    """
    check_folder_of_run(place)
    try:
        content = json.loads((place / (SETTINGS if is_given(place) else CONFIG)).read_text())
        own = _own_parts(content)
        if own and not trust_code:
            raise DataError(
                f"this folder names code of its own, {', '.join(own)}; expected a part of equidp; if you "
                "trust its sender, add --trust-code (trust_code=True in Python).",
                field="trust_code",
            )
        config, plan = TrainConfig.from_plain(content["config"]), ResolvedPlan.from_plain(content["plan"])
        return config, plan, content["facts"]
    except EquidpError as error:
        raise DataError(
            f"the run in {os.fspath(place)!r} cannot be read: {error}",
            field=error.field,
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{os.fspath(place)!r} holds no run that this version of equidp can read "
            f"({type(error).__name__}); expected a folder that equidp train --out made.",
            field="folder",
        ) from error


def _own_parts(content: Any) -> list[str]:
    """Import paths that the settings of a run name for a method, a model or data, wherever they stand."""
    found: list[str] = []
    for name, value in content.items() if isinstance(content, dict) else enumerate(content):
        if isinstance(name, str) and is_import_path(name):  # of settings by method
            found.append(name)
        if name in ("method", "model") and is_import_path(value):
            found.append(value)
        if name == "data" and isinstance(value, dict) and is_import_path(value.get("name")):
            found.append(value["name"])
        if isinstance(value, dict | list):
            found += _own_parts(value)
    return list(dict.fromkeys(found))


def own_code(plan: ResolvedPlan) -> dict[str, str]:
    """Digests of the user-defined code that a plan trains with, by kind of part; of code with source."""
    parts = {"method": type(plan.policy), "model": plan.plan.factory}
    digests = {name: object_digest(part) for name, part in parts.items()}
    return {name: digest for name, digest in digests.items() if digest and not digest.startswith("equidp.")}


def check_code(
    plan: ResolvedPlan,
    facts: dict[str, Any],
    place: Path,
    parts: tuple[str, ...] = ("method", "model"),
) -> None:
    """Raise a DataError if user-defined code has changed since the run began."""
    began = facts.get("own_code", {})
    now = own_code(plan)
    if changed := [part for part in parts if part in began and now.get(part) != began[part]]:
        names = {"method": plan.method, "model": plan.plan.model_name}
        listed = ", ".join(f"{part} {names[part]!r}" for part in changed)
        raise DataError(
            f"the code of {listed} is not the one that the run in {os.fspath(place)!r} was trained with; "
            "bring back that code, or train again.",
            field=", ".join(changed),
        )


def load_same(
    config: TrainConfig, encoder: TableEncoder | None, facts: dict[str, Any], place: Path
) -> DataSplit:
    """Load the data that a run began with.

    Raises:
        DataError: its file is gone or cannot be read, or it holds other data.
    """
    try:
        split = config.load(encoder)[0]
    except DataError as error:
        if error.field != "path" or os.path.exists(config.data.name):
            raise
        raise DataError(
            f"there is no file {config.data.name!r}, which {os.fspath(place)!r} began with; bring it back.",
            field="data",
        ) from error
    if split.digest() != facts["sensitive_data_sha256"]:
        features = f" with features {config.data.features!r}" if config.data.features else ""
        raise DataError(
            f"{config.data.name!r}{features} is not the data that {os.fspath(place)!r} began with; bring it "
            "back, or train again.",
            field="data",
        )
    return split
