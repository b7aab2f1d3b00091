"""Format: a kind of file that others open. ExportedRun: all of a run that such a file may hold."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from equidp._provenance import versions
from equidp.engines.model import call_for_tensor
from equidp.errors import ModelError
from equidp.ledger.format import plain
from equidp.report.guarantee import guarantee_sentences, privacy_unit
from equidp.runs.saved import FinishedRun
from equidp.tables.encode import TableEncoder

FACTS = "model.json"
"""Name of the file with the guarantee, the inputs and the outputs of the model, which is in each export."""
_ROWS = 2
"""Rows of made-up inputs: of one row, torch.export would keep the number."""


@final
@dataclass(frozen=True)
class ExportedRun:
    """A finished run without anything that an export may not hold.

    Attributes:
        kept: the run.
        encoder: of a table's columns; None: left out, since epsilon does not cover it, or there is none.
    """

    kept: FinishedRun
    encoder: TableEncoder | None

    @classmethod
    def of(cls, kept: FinishedRun, *, include_sensitive: bool) -> ExportedRun:
        """Return the exported parts of a run; `include_sensitive`: an uncovered encoder too."""
        encoder = kept.encoder
        shareable = encoder is not None and (encoder.is_covered or include_sensitive)
        return cls(kept, encoder if shareable else None)

    @property
    def is_sensitive(self) -> bool:
        """True where the export holds values of training rows that epsilon does not cover."""
        return self.encoder is not None and not self.encoder.is_covered

    @property
    def lacks_encoder(self) -> bool:
        """True for a table whose encoder is left out, or not in a folder of shareable files."""
        is_table = self.kept.encoder is not None or self.kept.config.data.recipe.target is not None
        return is_table and self.encoder is None

    @cached_property
    def inputs(self) -> Tensor:
        """Made-up inputs that the model takes, [2, ...].

        Raises:
            ModelError: the model takes neither float32 nor int64 of the shape that it was trained on.
        """
        shape = (_ROWS, *self.kept.facts["input_shape"])
        failures = []
        for dtype in (torch.float32, torch.int64):
            inputs = torch.zeros(shape, dtype=dtype)
            try:
                with torch.no_grad():
                    call_for_tensor(self.kept.run.model, inputs)
            except Exception as error:  # a model of the user's own can fail as anything
                failures.append(f"{dtype}: {type(error).__name__}: {error}")
            else:
                return inputs
        raise ModelError(
            f"the model takes no zeros of shape {list(shape)} ({'; '.join(failures)}); export it as "
            "safetensors, which calls no model.",
            field="model",
        )

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Plain facts on the model: guarantee, inputs, outputs, and the encoder where it is exported."""
        kept, config = self.kept, self.kept.config
        run, classes = kept.run, list(kept.facts["class_names"])
        spent, decision = run.epsilon(), config.decision
        positive = decision.index(classes)
        facts: dict[str, Any] = {
            "equidp": versions()["equidp"],
            "method": config.method,
            "epsilon": spent if math.isfinite(spent) else None,
            "delta": run.delta,
            "accountant": run.accountant,
            "unit": privacy_unit(run.facts),
            "neighbours": "one unit added or removed",
            "guarantee": guarantee_sentences(run),
            "entries": [[plain(event), steps] for event, steps in run.entries],
            "notes": list(kept.facts["notes"]),
            "model": config.plan.for_method(config.method).model_name,
            "inputs": {"shape": list(kept.facts["input_shape"])},
            "outputs": {"kind": "logits" if classes else "number", "classes": classes},
        }
        if kept.encoder is not None:
            facts["inputs"]["columns"] = [column.name for column in kept.encoder.columns]
        if positive is not None:
            facts["outputs"] |= {"positive": classes[positive], "threshold": decision.threshold}
        if self.encoder is not None:
            facts["encoder"] = asdict(self.encoder)
        return facts

    @property
    def labels(self) -> dict[str, str]:
        """Facts as short texts, for formats whose metadata are texts."""
        facts = self.facts
        of_guarantee = ("epsilon", "delta", "accountant", "unit", "neighbours")
        texts = {name: "infinite" if facts[name] is None else str(facts[name]) for name in of_guarantee}
        classes = facts["outputs"]["classes"]
        named = {"classes": json.dumps(classes, ensure_ascii=False)} if classes else {}
        return {"equidp": facts["equidp"], "method": facts["method"], **texts, **named}


@final
@dataclass(frozen=True)
class Format:
    """A kind of file that others open.

    Attributes:
        file: name of the file in the export's folder.
        contents: description of the file, for the help of the command.
        write: writes the file, complete, or raises an EquidpError.
        packages: import names of packages that writing needs, of the extra `export`.
    """

    file: str
    contents: str
    write: Callable[[ExportedRun, Path], None]
    packages: tuple[str, ...] = ()


def modules_of(model: nn.Module) -> list[Mapping[str, str]]:
    """Return name, type and settings of each module of a model that holds no others, in their order."""
    return [
        {
            "name": name,
            "type": f"{type(module).__module__}.{type(module).__qualname__}",
            "settings": module.extra_repr(),
        }
        for name, module in model.named_modules()
        if not any(module.children())
    ]


def facts_text(facts: Mapping[str, Any]) -> str:
    """Return the facts as the JSON of `FACTS`."""
    return json.dumps(facts, indent=2, ensure_ascii=False)
