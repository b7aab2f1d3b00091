"""Checks and files for code that extends equidp: a study, a source or a command of the user's.

>>> raise unknown_name("attribute", "Smilng", ["Smiling", "Young"])
Traceback (most recent call last):
equidp.errors.SettingError: unknown attribute 'Smilng'. Did you mean 'Smiling'? Known: Smiling, Young.
"""

from equidp._files import check_folder, check_outputs, write_whole
from equidp._provenance import versions
from equidp._validate import check_number, check_whole, unknown_name

__all__ = [
    "check_folder",
    "check_number",
    "check_outputs",
    "check_whole",
    "unknown_name",
    "versions",
    "write_whole",
]
