"""RunFolder: the files of one run on disk, those to give away apart from those to keep."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, final

from equidp._files import command_line, is_command, sync_folder, write_whole
from equidp.data.dataset import DataSplit
from equidp.errors import DataError, EquidpError
from equidp.kernel.event import Entries, Event, EventCounts
from equidp.runs.config import TrainConfig
from equidp.runs.own_code import check_trusted, find_import_paths
from equidp.runs.releases import CountsRelease, IndividualRelease, PreprocessingRelease
from equidp.tables.encode import TableEncoder
from equidp.training.release import Release
from equidp.training.resolved import ResolvedPlan

CONFIG, LEDGER, RECORD = "config.json", "ledger", "record.parquet"
"""Files of `private/`, in addition to checkpoints and `sensitive/`."""
RUN, MODEL, CARD, PAGE, SUMS = "run.json", "model.safetensors", "card.md", "card.html", "SHA256SUMS"
"""Files of `share/`."""
ENCODER, COUNTS, RELEASED = PreprocessingRelease.file, CountsRelease.file, IndividualRelease.file
"""Files of `share/` if epsilon covers them."""
README, NOTICE = "README.txt", "NOT-PRIVATE.txt"
"""Description of the files of `share/`; and its only file if the run has no privacy."""
DRAFT = ".equidp-draft-"
"""Prefix of folders that are not complete."""

Settings = tuple[TrainConfig, ResolvedPlan, dict[str, Any]]
"""Configuration of a run, its plan, and the facts that followed."""


@final
class RunFolder:
    """Files of one run: `share/` is to be given away as a whole, `private/` is to be kept.

    `share/` appears when the run is complete. All in it follows from what epsilon covers, from settings and
    from names. The results of a run without privacy are in `private/results/`, and its `share/` has a notice.

    Args:
        path: path of the folder, or of a copy of only `share/`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.private = self.path / "private"
        self._unshared = self.private / "results"

    def __str__(self) -> str:
        return repr(os.fspath(self.path))

    @property
    def results(self) -> Path:
        """Folder of the model, its cards and `run.json`."""
        if self._unshared.exists():
            return self._unshared
        return self.path if (self.path / RUN).exists() else self.path / "share"

    @property
    def has_begun(self) -> bool:
        """True for a folder with `private/`, of a run that is finished or can be continued."""
        return (self.private / CONFIG).exists()

    @property
    def is_finished(self) -> bool:
        """True for a folder with results: of a complete run, or a copy of its `share/`."""
        return (self.results / RUN).exists()

    def find(self, name: str) -> Path:
        """Return the path of a file that a run keeps, or of its copy if there is no `private/`."""
        return (self.private if self.has_begun else self.results) / name

    def check(self) -> None:
        """Raise a DataError unless this is the folder of a run, or a copy of its `share/`."""
        if self.has_begun or self.is_finished:
            return
        if not self.path.exists():
            raise DataError(f"there is no folder {self}; check the path.", field="folder")
        if any((self.path / name).exists() for name in (CONFIG, "settings.json")):
            raise DataError(
                f"the run in {self} was made by an older version of equidp; open it with that version, or "
                "train again.",
                field="folder",
            )
        kind = "a folder without a run" if self.path.is_dir() else "a file"
        raise DataError(
            f"{self} is {kind}; expected a folder that equidp train --out made, or a copy of its share/.",
            field="folder",
        )

    def resume_command(self) -> str:
        """Return the command that continues the run, to be printed on a separate line."""
        trusting = []
        with suppress(OSError, DataError):
            trusting = ["--trust-code"] if find_import_paths(self._read_json(CONFIG)) else []
        return command_line("equidp", "train", "--resume", self.path, *trusting)

    def name_way_on(self) -> str:
        """Return what continues a stopped run, on its own line: a command inside a command, else a call."""
        if is_command():
            return self.resume_command()
        return f"equidp.train(..., out={os.fspath(self.path)!r}), with the arguments that it began with"

    def how_to_continue(self) -> str:
        """Return what continues a run which was stopped, after a sentence."""
        return f"To continue:\n{self.name_way_on()}"

    def check_finished(self) -> None:
        """Raise a DataError unless this is a finished run, or a copy of its `share/`."""
        self.check()
        if not self.is_finished:
            raise DataError(f"the run in {self} is not finished. {self.how_to_continue()}", field="folder")

    def read_settings(self, *, trust_code: bool = False) -> Settings:
        """Read the configuration of the run, its plan, and the facts that followed.

        Args:
            trust_code: import a method and a model of the user's that the folder names.

        Raises:
            DataError: there is no run, it cannot be read, or the folder names code that is not trusted.
        """
        self.check()
        try:
            content = json.loads(self.find(CONFIG if self.has_begun else RUN).read_text())
            check_trusted(content, trust_code=trust_code)
            config, plan = (
                TrainConfig.from_plain(content["config"]),
                ResolvedPlan.from_plain(content["plan"]),
            )
            return config, plan, content["facts"]
        except EquidpError as error:
            raise DataError(f"the run in {self} cannot be read: {error}", field=error.field) from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"{self} holds no run that this version of equidp can read ({type(error).__name__}); "
                "expected a folder that equidp train --out made.",
                field="folder",
            ) from error

    def read_encoder(self, config: TrainConfig) -> TableEncoder | None:
        """Read the encoder of the run's columns, or None if it is not kept, or follows from the data.

        Raises:
            DataError: the encoder's file is missing though it was paid for, or not as equidp wrote it.
        """
        path = self.find(ENCODER)
        try:
            return TableEncoder.from_json(path.read_text())
        except FileNotFoundError as error:
            if config.preprocessing is None:
                return None
            raise DataError(
                f"{os.fspath(path)!r} is gone. What it held was released, and paid for, once; bring it back.",
                field=ENCODER,
            ) from error
        except DataError as error:
            raise DataError(f"{os.fspath(path)!r}: {error}", field=ENCODER) from error
        except Exception as error:
            raise not_as_written(path, error) from error

    def read_results(self) -> tuple[dict[str, Any], EventCounts, EventCounts]:
        """Read `run.json`: its content, the entries of the plan, and the entries that were not taken."""
        path = self.results / RUN
        try:
            content = json.loads(path.read_text())
            entries, not_taken = (_read_entries(content[name]) for name in ("entries", "not_taken"))
            return content, entries, not_taken
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise not_as_written(path, error) from error

    def read_counts(self) -> dict[str, float]:
        """Read the number of training examples of each class, released with noise; empty if not released."""
        counts: dict[str, float] = self._read_json(COUNTS, {})
        return counts

    def read_released(self) -> list[dict[str, Any]]:
        """Read the individual privacy of groups that the run released, or empty if it did not release it."""
        released: list[dict[str, Any]] = self._read_json(RELEASED, [])
        return released

    def read_drawn(self, releases: Iterable[Release]) -> dict[str, Any]:
        """Read the results of the releases so far, by name."""
        kept = [each for each in releases if not each.prepares() and self.find(each.file).exists()]
        return {each.name: self._read_json(each.file) for each in kept}

    def _read_json(self, name: str, missing: Any = None) -> Any:
        path = self.find(name)
        if missing is not None and not path.exists():
            return missing
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise not_as_written(path, error) from error

    def load_same(
        self, config: TrainConfig, encoder: TableEncoder | None, facts: Mapping[str, Any]
    ) -> DataSplit:
        """Load the data that the run began with.

        Raises:
            DataError: its file is gone or cannot be read, or it holds other data.
        """
        try:
            split = config.load(encoder)[0]
        except DataError as error:
            if error.field != "path" or os.path.exists(config.data.name):
                raise
            raise DataError(
                f"there is no file {config.data.name!r}, which {self} began with; bring it back.",
                field="data",
            ) from error
        if split.digest() != facts["sensitive_data_sha256"]:
            features = f" with features {config.data.features!r}" if config.data.features else ""
            raise DataError(
                f"{config.data.name!r}{features} is not the data that {self} began with; bring it back, or "
                "train again.",
                field="data",
            )
        return split

    @contextmanager
    def write_results(self, *, shared: bool) -> Iterator[Path]:
        """Give an empty folder to write results to, which then take the place of earlier ones at once.

        Args:
            shared: whether they go to `share/`; False for a run without privacy.
        """
        draft = self.path / f"{DRAFT}{secrets.token_hex(8)}"
        draft.mkdir()
        try:
            yield draft
            if shared:
                write_whole(draft / README, _WHAT_IS_SHARED)
            write_sums(draft)
            if not shared:
                (self.path / "share").mkdir(exist_ok=True)
                write_whole(self.path / "share" / NOTICE, _NOT_PRIVATE)
            target = self.path / "share" if shared else self._unshared
            earlier = self.path / f"{DRAFT}{secrets.token_hex(8)}"
            if target.exists():  # until the new results are there, the run counts as unfinished
                os.replace(target, earlier)
            os.replace(draft, target)
            shutil.rmtree(earlier, ignore_errors=True)
            sync_folder(target.parent)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def drop_drafts(self) -> None:
        """Delete what a process that was killed left unfinished. Call it with the ledger open, as its lock
        keeps out other processes."""
        for path in self.path.glob(f"{DRAFT}*"):
            shutil.rmtree(path, ignore_errors=True)


_WHAT_IS_SHARED = """\
A model trained with differential privacy by equidp.

card.html, card.md    the model card: guarantee, metrics by group, what epsilon does not cover
model.safetensors     the trained weights
run.json              epsilon and delta, and the steps and releases behind them
SHA256SUMS            checksums of the other files
Other .json files hold noisy releases, which epsilon covers. It covers preprocessing.json
only if the card says that preprocessing was private.

To check these files and recompute epsilon, in this folder:
    sha256sum -c SHA256SUMS
    equidp verify .
The card names the version of equidp; pip install '.[tables]' in a checkout installs it.
Without equidp, use the code on the card (pip install dp-accounting).

No file here shows that the ledger agrees, that this code ran, or that no other run read the data.
The owner has the ledger. More: docs/verify.md and docs/not-covered.md of equidp.
"""
_NOT_PRIVATE = (
    "This run is without privacy: its model was trained without noise and may reveal its training data. "
    "Nothing of it is for sharing but this notice.\n"
)


def keep_release(folder: Path, release: Release, drawn: Any) -> None:
    """Write the result of a release to its file, as JSON. An encoder has its own form."""
    own = drawn.to_json() if isinstance(drawn, TableEncoder) else json.dumps(drawn, indent=2) + "\n"
    write_whole(folder / release.file, own)


def _read_entries(records: list[Any]) -> EventCounts:
    entries: dict[Event, int] = {}
    for record, count in records:
        event = Event.of_record(record)
        whole = json.loads(json.dumps(asdict(event))) == record and int(count) == count
        if not whole or count < 1 or event in entries:
            raise ValueError(record)
        entries[event] = int(count)
    return tuple(entries.items())


def number_columns(entries: Entries) -> EventCounts:
    """Return the entries with columns "1", "2", ... instead of digests, in order of occurrence."""
    given = tuple(entries)
    digests = dict.fromkeys(event.column for event, _ in given if event.shares)
    numbers = {digest: str(number) for number, digest in enumerate(digests, start=1)}
    return tuple((replace(event, column=numbers.get(event.column, "")), count) for event, count in given)


def not_as_written(path: Path, error: Exception) -> DataError:
    """Return the error of a file of a run that cannot be read."""
    return DataError(
        f"{path.name} in {os.fspath(path.parent)!r} is not as equidp wrote it ({type(error).__name__}); "
        "bring it back.",
        field=path.name,
    )


def file_digest(path: Path) -> str:
    """SHA-256 of a file, as sha256sum prints it."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write the checksums of files in a folder, in sha256sum's format. None: all except the list itself."""
    listed = sorted(each.name for each in folder.iterdir() if each.name != SUMS) if names is None else names
    lines = [f"{file_digest(folder / name)}  {name}\n" for name in listed if (folder / name).exists()]
    write_whole(folder / SUMS, "".join(lines))


def compare_sums(folder: Path) -> dict[str, str]:
    """Return what each file of a folder's list of checksums is: "same", "changed" or "missing"."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except OSError:
        return {SUMS: "missing"}
    states = {}
    for digest, _, name in (line.partition("  ") for line in lines):
        path = folder / name
        if path.name != name:  # what leads out of the folder is not read
            states[name] = "changed"
        elif not path.is_file():
            states[name] = "missing"
        else:
            states[name] = "same" if file_digest(path) == digest else "changed"
    return states


def check_sums(folder: Path, resume_command: str = "") -> None:
    """Raise a DataError that names the files of a folder which differ from its list of checksums, if any.

    Args:
        resume_command: command that writes them again. "": there is none.
    """
    changed = [name for name, state in compare_sums(folder).items() if state != "same"]
    if changed:
        again = f", or write all again:\n{resume_command}" if resume_command else "."
        are, them = ("is", "it") if len(changed) == 1 else ("are", "them")
        raise DataError(
            f"{', '.join(changed)} in {os.fspath(folder)!r} {are} not as equidp wrote {them} ({SUMS} there "
            f"lists checksums); bring {them} back{again}",
            field=", ".join(changed),
        )
