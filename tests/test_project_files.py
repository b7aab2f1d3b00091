"""Files around the code: workflows, forms and hooks."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / ".github").rglob("*.yml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_workflows_and_forms_are_read_as_yaml(path):
    content = yaml.safe_load(path.read_text())
    assert isinstance(content, dict)


def test_workflows_run_targets_that_are_there():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    run = [
        step["run"]
        for path in FILES
        for job in yaml.safe_load(path.read_text()).get("jobs", {}).values()
        for step in job["steps"]
        if step.get("run", "").startswith("make ")
    ]
    assert run
    assert {each.removeprefix("make ") for each in run} <= targets


def test_hooks_before_a_commit_run_each_linter_of_the_makefile():
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    linters = [line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in recipe[1].splitlines()]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    entries = [hook["entry"].removeprefix(".venv/bin/").replace(" --force-exclude", "") for hook in hooks]
    assert entries == linters
    assert "codespell" in linters


def test_conda_recipe_and_citation_have_version_and_requirements_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert recipe["context"]["version"] == citation["version"] == project["version"]
    needed = {each.replace(" ", "").replace("pytorch", "torch") for each in recipe["requirements"]["run"]}
    assert needed == {"python>=${{python_min}}", *project["dependencies"]}
    assert project["requires-python"] == f">={recipe['context']['python_min']}"
