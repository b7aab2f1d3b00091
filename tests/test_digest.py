"""Digests of code: by its source and its values; none where the source is not that of the code that runs."""

from __future__ import annotations

import importlib
import linecache
import sys

import pytest

from equidp.digest import code_digest, object_digest

LOSS = "SHARE = 0.5\ndef loss(outputs, targets): return SHARE * (outputs - targets).abs()\n"


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Import a source as a module, anew at each call."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def take(source):
        (tmp_path / "own_code.py").write_text(source)
        sys.modules.pop("own_code", None)
        importlib.invalidate_caches()
        return importlib.import_module("own_code")

    yield take
    sys.modules.pop("own_code", None)


def cell(source: str, number: int = 1):
    """What a cell of a notebook defines as `loss`."""
    name, space = f"<ipython-input-{number}>", {"__name__": "__main__"}
    exec(compile(source, name, "exec"), space)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    return space["loss"]


def test_a_cell_of_a_notebook_counts_by_its_source_and_the_values_that_it_reads():
    before = code_digest(cell(LOSS))
    assert before is not None
    assert code_digest(cell("# a comment\n" + LOSS, 2)) == before
    assert code_digest(cell(LOSS.replace(".abs()", ".square()"), 3)) != before
    assert code_digest(cell(LOSS.replace("0.5", "0.25"), 4)) != before


@pytest.mark.parametrize("name", ["__main__", "somewhere", None])
def test_code_that_was_typed_or_made_by_exec_has_no_digest(name):
    space = {} if name is None else {"__name__": name}
    exec(LOSS, space)
    assert code_digest(space["loss"]) is None
    assert object_digest(space["loss"]) is None


def test_a_file_that_changed_after_its_import_has_no_digest_until_it_is_imported_anew(module, tmp_path):
    loss = module(LOSS).loss
    (tmp_path / "own_code.py").write_text(LOSS.replace("outputs - targets", "targets - outputs"))
    assert code_digest(loss) is None
    again = module(LOSS.replace("outputs - targets", "targets - outputs")).loss
    assert code_digest(again) not in (None, code_digest(module(LOSS).loss))


def test_lambdas_of_one_line_differ(module):
    own = module("losses = [lambda o, t: o - t, lambda o, t: t - o]\nsame = losses[0]\n")
    assert code_digest(own.losses[0]) == code_digest(own.same) != code_digest(own.losses[1])


def test_a_module_of_another_name_is_not_imported_for_an_attribute_of_that_name(module, tmp_path):
    (tmp_path / "weights.py").write_text("raise SystemExit('it was imported')\n")
    assert code_digest(module("def part(model): return model.weights\n").part) is not None
