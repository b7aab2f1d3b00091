"""The model as a graph of operators, which runs without its code: torch.export and ONNX."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equidp.engines.model import call_for_tensor
from equidp.errors import ModelError
from equidp.runs.exports.format import FACTS, ExportedRun, facts_text


class _Outputs(nn.Module):
    """A model whose result is a tensor, also where it returns a mapping."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return call_for_tensor(self.model, inputs)


def write_torch_export(export: ExportedRun, path: Path) -> None:
    """Write the graph for `torch.export.load`, with the facts as an extra file."""
    program = _program(export)
    torch.export.save(program, path, extra_files={FACTS: facts_text(export.facts)})


def write_onnx(export: ExportedRun, path: Path) -> None:
    """Write the graph as ONNX, from "inputs" to "outputs", with the guarantee as metadata."""
    program = _program(export)
    with _translating("ONNX"):
        found = torch.onnx.export(
            program, dynamo=True, input_names=["inputs"], output_names=["outputs"], verbose=False
        )
        assert found is not None, "of a program, the exporter returns one"
        found.model.metadata_props.update(export.labels)
        found.save(str(path), external_data=False)


def _program(export: ExportedRun) -> Any:
    """Return the model's graph for any number of rows, without lines and paths of source files."""
    rows = torch.export.Dim("rows")
    model = _Outputs(export.kept.run.model).eval()
    inputs = export.inputs
    with _translating("a graph for torch.export"):
        program = torch.export.export(model, (inputs,), dynamic_shapes=({0: rows},))
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)
    return program


@contextmanager
def _translating(what: str) -> Iterator[None]:
    """Keep what PyTorch's exporters print from the user; a failure becomes a ModelError."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0]
        raise ModelError(
            f"the model cannot be written as {what} ({type(error).__name__}: {reason}); expected one whose "
            "operations do not depend on the values or the number of rows. Export it as safetensors.",
            field="model",
        ) from error
    finally:
        logging.disable(disabled)
