"""Findings on a column of a table, and the words for each of them.

A `Finding` is a value: its kind, its numbers, and the options of a recipe that settle it. Reading refuses or
warns by findings, and `equidp inspect` shows the same ones and takes their options into a recipe.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from equidp.tables.recipe import MARKS, as_key, in_shell


class Kind(StrEnum):
    """Kinds of findings; `phrase` says what each is."""

    ODD_TYPE = "odd type"
    UNREADABLE = "unreadable"
    WORD = "word for a missing value"
    CODE = "code for a missing value"
    DAY = "day for a missing date"
    ABSENT = "missing values as words"
    MISSING_TEXT = "text that says missing"
    DATES = "dates"
    DATES_AS_TEXTS = "dates as texts"
    DATES_AS_NUMBERS = "dates as numbers"
    MARKS = "marks"
    SEVERAL_MARKS = "several marks"
    LONG = "long numbers"
    ZEROS = "leading zeros"
    SCIENTIFIC_OR_PLUS = "scientific or plus"
    NUMBER_SPELLINGS = "spellings of a number"
    SPELLINGS = "spellings"
    ROW_NAMES = "names of rows"
    INFINITE = "infinite numbers"
    BEYOND = "large numbers"
    FAR = "numbers far out"
    OUTSIDE = "numbers outside of a range"
    TOO_MANY_TEXTS = "too many texts"
    UNCOUNTED_TEXTS = "more texts than are counted"
    MANY_CATEGORIES = "many categories"
    RARE_CATEGORIES = "rare categories"
    MANY_CLASSES = "many classes"
    EMPTY = "no value"
    CONSTANT = "one value"
    ABSENT_TARGET = "missing targets"
    RARE_GROUPS = "rare groups"
    RARE_CLASSES = "rare classes"
    DECISIVE = "decisive for the target"
    POSITIVE = "positive class"
    PERSONS = "names of people"


class Level(StrEnum):
    """Consequences of a finding when a table is read."""

    PROBLEM = "problem"
    """The table is refused."""
    DOUBT = "doubt"
    """A warning."""
    HINT = "hint"
    """None; only `equidp inspect` shows it."""


@dataclass(frozen=True)
class Finding:
    """Something to know about a column.

    Attributes:
        kind: what it is.
        level: what follows from it when the table is read.
        options: (option, value) of a recipe that settle it, together; (): none does.
        sure: False if the options are to be checked first, so that `equidp inspect` does not take them.
        rows: number of rows or values that it concerns.
        of: number of rows or values among which they are.
        first: first row that it concerns, from 0; -1 where it is not known.
        detail: a word, code, format or limit, by its kind.
        other: a second one, or what there is besides; "": none.
    """

    kind: Kind
    level: Level
    options: tuple[tuple[str, str], ...] = ()
    sure: bool = True
    rows: int = 0
    of: int = 0
    first: int = -1
    detail: str = ""
    other: str = ""

    def settles_by(self, *options: str) -> bool:
        """Return True if one of these options settles it."""
        return any(option in options for option, _ in self.options)

    def flags(self, column: str, quote: Callable[[str], str] = shlex.quote) -> str:
        """Return the options as they are typed; "" without any."""
        return " ".join(flag(column, option, value, quote) for option, value in self.options)


def flag(column: str, option: str, value: str = "", quote: Callable[[str], str] = in_shell) -> str:
    """Return an option for a column as it is typed.

    >>> flag("lab", "decimal", ","), flag("pulse", "numeric")
    ("--decimal 'lab=comma'", "--numeric 'pulse'")
    """
    if option in ("positive", "rows_per_person"):
        return f"--{option.replace('_', '-')} {quote(value)}"
    key = as_key(column) if option in ("na", "not_na", "thousands", "decimal") else column
    if option in ("thousands", "decimal"):
        value = word_of(value)
    elif (option, value) == ("date", "iso"):
        value = ""
    return f"--{option.replace('_', '-')} {quote(f'{key}={value}' if value else key)}"


def word_of(mark: str) -> str:
    """Return the word for a mark within numbers."""
    return next(word for word, other in MARKS.items() if other == mark)


USUAL_ROWS_PER_PERSON = 4
"""Most rows of a person that are proposed where nothing is known of them."""
_PEOPLE = re.compile(r"(^|[^a-z])(pid|mrn|person|patient|subject|client|customer|member|user)([^a-z]|$)")


def names_people(column: str) -> bool:
    """Return True where a column's name says that it names people.

    >>> [name for name in ("patient", "userId", "CUSTOMER_NR", "id", "clientele") if names_people(name)]
    ['patient', 'userId', 'CUSTOMER_NR']
    """
    return _PEOPLE.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", column).lower()) is not None


def count_phrase(rows: int) -> str:
    """Return a number of rows in words."""
    return f"{rows:,} {'row' if rows == 1 else 'rows'}"


def phrase(found: Finding) -> str:
    """Return what a column holds, such as "numbers with decimal commas"; name no cell but fixed words."""
    rows, detail = count_phrase(found.rows), found.detail
    match found.kind:
        case Kind.ODD_TYPE:
            return f"values of type {detail}"
        case Kind.UNREADABLE:
            lost = "" if found.options or found.level is Level.PROBLEM else " and count as missing"
            return f"{detail}, but {found.rows:,} of its {found.of:,} values are not{lost}"
        case Kind.WORD:
            return f"{detail!r} in {rows}, among {found.other}"
        case Kind.CODE:
            return f"{detail} in {rows}{found.other and f', {found.other}'}"
        case Kind.DAY:
            return f"the date {detail} in {found.rows:,} of {found.of:,} rows, apart from the others"
        case Kind.ABSENT:
            beside = f", beside {rows} without a value" if found.rows else ""
            return f"{detail}, which count as missing{beside}"
        case Kind.MISSING_TEXT:
            return f"the text {detail!r} in {rows}, which are one category with those without a value"
        case Kind.DATES | Kind.DATES_AS_TEXTS:
            also = f" ({found.other} fits as well: check which is meant)" if found.other else ""
            return f"{detail}{also}"
        case Kind.DATES_AS_NUMBERS:
            return "dates without separators"
        case Kind.MARKS:
            return _marks_phrase(found)
        case Kind.SEVERAL_MARKS:
            return f"numbers with several marks ({detail})"
        case Kind.LONG:
            return f"whole numbers of more than 15 digits in {rows}"
        case Kind.ZEROS:
            return "numbers with leading zeros, as codes have"
        case Kind.SCIENTIFIC_OR_PLUS:
            return f"numbers written as 3E2 or +49 are, in {rows}"
        case Kind.NUMBER_SPELLINGS:
            return f"one number in several ways, as 1.1 and 1.10 are, in {rows}"
        case Kind.SPELLINGS:
            return (
                f"{found.of:,} different values, or {found.rows:,} if capitals, spaces, leading zeros and "
                "'.0' at the end do not count"
            )
        case Kind.ROW_NAMES:
            return f"another {detail} in each row"
        case Kind.INFINITE:
            return f"infinite numbers in {rows}"
        case Kind.BEYOND:
            return f"numbers beyond {detail}"
        case Kind.OUTSIDE:
            return f"numbers outside of its public range, {detail}, in {found.rows:,} of {found.of:,} rows"
        case Kind.FAR:
            return f"numbers in {rows} that lie far out: state a public range"
        case Kind.TOO_MANY_TEXTS:
            return f"{found.of} distinct texts, more than the {detail} that make sense as categories"
        case Kind.UNCOUNTED_TEXTS:
            first = "" if found.first < 0 else f", the first that is not a number in row {found.first + 1:,}"
            return f"more than {found.of:,} distinct texts{first}: too many for categories"
        case Kind.MANY_CATEGORIES:
            return f"{found.of:,} categories, an input for each"
        case Kind.RARE_CATEGORIES:
            return f"{found.rows:,} of {found.of:,} categories in fewer than {detail} rows"
        case Kind.MANY_CLASSES:
            return f"{found.of:,} different numbers, each a class of its own"
        case Kind.EMPTY:
            return "no value at all"
        case Kind.CONSTANT:
            return "one value in all rows"
        case Kind.ABSENT_TARGET:
            return f"no value in {rows}: remove those rows"
        case Kind.RARE_GROUPS:
            groups = "1 group" if found.rows == 1 else f"{found.rows:,} groups"
            return f"{groups} of fewer than {detail} rows: merge with others in the file"
        case Kind.RARE_CLASSES:
            classes = "1 class" if found.rows == 1 else f"{found.rows:,} classes"
            return f"{classes} of fewer than {detail} rows: too few to learn, and metrics may omit them"
        case Kind.DECISIVE:
            return (
                f"gives the target of {found.rows:,} of {found.of:,} rows by itself, perhaps as it was noted "
                "later"
            )
        case Kind.POSITIVE:
            return f"{detail!r} as the rarer class: the positive one?"
        case Kind.PERSONS:
            return f"people, {found.of:,} of them in {rows}" if found.of else "names people"


def _marks_phrase(found: Finding) -> str:
    options = dict(found.options)
    marks = []
    if "numeric" in options:
        marks.append("marks, such as a currency, a unit, percent or brackets")
    if "thousands" in options:
        marks.append(f"{word_of(options['thousands'])}s between thousands")
    if "decimal" in options:
        marks.append(f"decimal {word_of(options['decimal'])}s")
    where = f", in {found.rows:,} of its {found.of:,} values" if "numeric" in options else ""
    check = " (the mark may be a decimal one or one between thousands: check)" if found.other else ""
    return f"numbers with {' and '.join(marks)}{where}{check}"


def sentence(found: Finding, name: str) -> str:
    """Return the warning or the reason against training on this finding, for a column of any name.

    >>> print(sentence(Finding(Kind.CONSTANT, Level.HINT, (("drop", ""),)), "country"))
    column 'country' holds one value in all rows (--drop 'country').
    """
    subject, verb = "column", "holds"
    if found.kind in (Kind.SPELLINGS, Kind.TOO_MANY_TEXTS, Kind.UNCOUNTED_TEXTS):
        verb = "has"
    elif found.kind is Kind.NUMBER_SPELLINGS:
        verb = "writes"
    elif found.kind is Kind.UNREADABLE and not found.options:
        verb = "is to hold"
    elif found.kind is Kind.PERSONS:
        verb = "seems to name"
    if found.kind is Kind.MANY_CLASSES:
        subject = "target"
    elif found.kind is Kind.SPELLINGS and found.detail:
        subject = found.detail
    return f"{subject} {name!r} {verb} {phrase(found)}{_remedy(found, name)}."


def _remedy(found: Finding, name: str) -> str:
    """Return the end of a sentence: what follows from a finding, and what to do."""
    flags = found.flags(name, in_shell)
    typed = {option: flag(name, option) for option in ("drop", "categorical", "numeric", "fold", "person")}
    first = f", the first in row {found.first + 1:,}" if found.first >= 0 else ""
    drop, texts = f"drop it ({typed['drop']})", f"texts ({typed['categorical']})"
    rows_named = f"If it names the rows, {drop}"
    if names_people(name):
        rows_named = f"If it names people, promise epsilon to them ({typed['person']}); if rows, {drop}"
    match found.kind:
        case Kind.ODD_TYPE:
            otherwise = f", or {drop}" if found.options else ""
            return f"; expected numbers or texts. Spread it over columns{otherwise}"
        case Kind.UNREADABLE if found.level is Level.PROBLEM:
            return f"{first}; equidp inspect shows what it holds"
        case Kind.UNREADABLE if found.options:
            return f"{first}: all become categories. Let those count as missing ({flags})"
        case Kind.UNREADABLE:
            return first
        case Kind.WORD | Kind.CODE:
            return f"; if it stands for a missing value, say so ({flags})"
        case Kind.DAY:
            return f"; if it stands for no date, say so ({flags})"
        case Kind.ABSENT:
            return f"; where it is a value, say so ({flags})"
        case Kind.MISSING_TEXT:
            return f"; if that is meant, say so ({flags})"
        case Kind.DATES:
            if found.settles_by("date"):
                return f"; make them numbers ({flags}), keep them as {texts}, or {drop}"
            return f"; keep them as {texts}" if found.options else "; expected numbers: name another column"
        case Kind.DATES_AS_TEXTS:
            return f", taken as {found.of:,} categories; say so ({flags}), or that they are {texts}"
        case Kind.DATES_AS_NUMBERS:
            numbers = typed["numeric"]
            return f", read as numbers; say so ({flags}), or that they are numbers ({numbers})"
        case Kind.MARKS:
            return f", taken as categories; say so ({flags})"
        case Kind.SEVERAL_MARKS:
            return (
                ", which are read as they stand, 12.5% as 12.5; if they measure different things, write them "
                f"in one unit, or {drop}"
            )
        case Kind.LONG:
            return (
                f"{first}: numbers would merge those that differ at the end, so they are texts, each as it "
                f"is written. Say that they are ({typed['categorical']}), or that they are numbers "
                f"({typed['numeric']})"
            )
        case Kind.ZEROS:
            return f": the zeros are lost; if it is a code, such as a ZIP code, say so ({flags})"
        case Kind.SCIENTIFIC_OR_PLUS:
            return f"{first}; they are read as 300 and 49: if it is a code, say so ({flags})"
        case Kind.NUMBER_SPELLINGS:
            return f"{first}; they count as one: if it is a code, say so ({flags})"
        case Kind.SPELLINGS if found.detail == "person":
            return (
                ": epsilon is promised to each as a person of its own. If they are the same people, say so "
                f"({flags})"
            )
        case Kind.SPELLINGS if found.level is Level.PROBLEM:
            return f"; say that they are the same ({flags}), or that each is a class ({typed['categorical']})"
        case Kind.SPELLINGS:
            return f"; if they are the same, say so ({flags})"
        case Kind.ROW_NAMES:
            return f"; if it names the rows, drop it ({flags})"
        case Kind.INFINITE:
            return f"; fix them, let them count as missing ({flags}), or {drop}"
        case Kind.BEYOND:
            return f"; rescale it, or {drop}"
        case Kind.OUTSIDE:
            return ", which count as its nearer end; if not meant, give another range (--bounds)"
        case Kind.PERSONS:
            return (
                ", and is an input. Epsilon holds for one row: a person with several is protected less. "
                f"Promise it to people ({typed['person']} --rows-per-person {USUAL_ROWS_PER_PERSON}); if it "
                f"names none, {drop}"
            )
        case Kind.TOO_MANY_TEXTS:
            fold = (
                f" make {found.rows:,} of them by taking capitals and leading zeros for the same "
                f"({typed['fold']});"
                if found.rows <= int(found.detail)
                else ""
            )
            return (
                f". {rows_named}; if it holds numbers such as 1,234.5, say so (--thousands, "
                f"--decimal, --numeric). If it holds codes,{fold} in the file, shorten them to their first "
                "signs, or keep the frequent ones and write the others as one"
            )
        case Kind.UNCOUNTED_TEXTS:
            names = f"{rows_named}; if" if found.options else "If"
            return (
                f". {names} it holds numbers such as 1,234.5, say so (--thousands, "
                f"--decimal); if what is not a number counts as missing, say so ({typed['numeric']})"
            )
        case Kind.MANY_CLASSES:
            return "; if it measures something, bin it into few classes"
    return f" ({flags})" if flags else ""
