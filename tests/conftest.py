"""What several tests share: where real data is, and an engine made of given gradients."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from torch import Tensor

settings.register_profile("equidp", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("equidp")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real datasets."""
    folder = os.environ.get("EQUIDP_DATA")
    if not folder:
        pytest.skip("EQUIDP_DATA is not set; it names the folder with mnist/, adult/ and dutch/")
    return Path(folder)


@pytest.fixture
def command(monkeypatch, capsys):
    """Runs `equidp` in this process: (*arguments, cwd) -> exit code, standard output, standard error in one line."""

    def invoke(*arguments, cwd):
        from equidp.cli import main

        monkeypatch.chdir(cwd)
        monkeypatch.setenv("COLUMNS", "150")
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        monkeypatch.setattr(sys, "argv", ["equidp", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        seen = capsys.readouterr()
        return end.value.code or 0, seen.out, " ".join(seen.err.split())

    return invoke


class GivenGradients:
    """An engine whose per-example gradients are its inputs, [batch, d]: what the mechanism does with them is plain to see."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter
        self.gradients: Tensor | None = None

    def norms(self, inputs: Tensor, targets: Tensor) -> Tensor:
        self.gradients = inputs
        return torch.linalg.vector_norm(inputs, dim=1)

    def weighted_sum(self, weights: Tensor) -> None:
        assert self.gradients is not None
        total = weights @ self.gradients
        self.parameter.grad = total if self.parameter.grad is None else self.parameter.grad + total
        self.gradients = None
