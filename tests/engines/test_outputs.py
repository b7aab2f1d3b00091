"""Models of several outputs and losses of several targets: measured, tried and trained as others are."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from equidp.engines import check_model, checked_engine
from equidp.errors import ModelError
from equidp.kernel.inputs import taken
from equidp.losses import Loss, map_outputs
from support.errors import raises_field
from support.oracle import single_gradients

Pair = namedtuple("Pair", ["kind", "box"])


@dataclass
class Found:
    kind: Tensor
    box: Tensor
    note: str | None = None


FORMS = {
    "mapping": (lambda kind, box: {"kind": kind, "box": box}, lambda out: (out["kind"], out["box"])),
    "nested": (lambda kind, box: {"kind": [kind, None], "box": {"at": box}},
               lambda out: (out["kind"][0], out["box"]["at"])),
    "tuple": (lambda kind, box: (kind, box), tuple),
    "named tuple": (Pair, lambda out: (out.kind, out.box)),
    "dataclass": (Found, lambda out: (out.kind, out.box)),
}  # fmt: skip


class TwoHeads(nn.Module):
    def __init__(self, form: str = "mapping", mixes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.kind, self.box = nn.Linear(5, 6), nn.Linear(6, 3), nn.Linear(6, 2)
        self.form, self.mixes = form, mixes

    def forward(self, x: Tensor):
        read = torch.tanh(self.body(x))
        box = self.box(read)
        return FORMS[self.form][0](self.kind(read), box - box.mean(dim=0) if self.mixes else box)


def both(form: str = "mapping"):
    def loss(outputs, targets) -> Tensor:
        kind, box = FORMS[form][1](outputs)
        kinds = cross_entropy(kind, targets["kind"], reduction="none")
        return kinds + (box - targets["box"]).square().sum(dim=1)

    return loss


TARGETS = {"kind": torch.arange(8) % 3, "box": torch.rand(8, 2, generator=torch.Generator().manual_seed(1))}


@pytest.mark.parametrize(("form", "engine"), [*((form, "ghost") for form in FORMS), ("nested", "functional")])
def test_gradients_of_two_heads_are_those_of_single_examples(form, engine):
    model, loss, inputs = TwoHeads(form), both(form), torch.randn(8, 5)
    made = checked_engine(engine, model, loss, taken((inputs, TARGETS), slice(1))).engine
    measured = made(inputs, TARGETS)
    parts = [taken(TARGETS, [place]) for place in range(8)]
    oracle = torch.cat(
        [single_gradients(model, inputs[place : place + 1], part["kind"], lambda out, _, y=part: loss(out, y))
         for place, part in enumerate(parts)]
    )  # fmt: skip
    torch.testing.assert_close(measured.norms, oracle.norm(dim=1))
    sums = measured.sums(torch.ones(8))
    total = torch.cat([sums[each].flatten() for each in model.parameters()])
    torch.testing.assert_close(total, oracle.double().sum(dim=0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_head_that_mixes_examples_is_refused_in_whatever_form_it_is(form):
    with raises_field(ModelError, "losses"):
        check_model(TwoHeads(form, mixes=True), both(form), torch.randn(8, 5), TARGETS)


def test_an_output_without_the_batch_is_refused():
    class Auxiliary(TwoHeads):
        def forward(self, x):
            return {**super().forward(x), "regularisation": self.box.weight.square().sum()}

    with raises_field(ModelError, "model"):
        check_model(Auxiliary(), both(), torch.randn(8, 5), TARGETS)


def test_views_of_a_model_of_several_outputs_count_as_one_example():
    loss = Loss(lambda outputs, targets: outputs["a"][:, 0] + outputs["b"][:, 0] + targets).by_example()
    outputs = {"a": torch.ones(2, 3, 1), "b": torch.full((2, 3, 1), 2.0)}
    pairs = torch.tensor([[[0.0, 1.0]] * 3, [[1.0, 0.5]] * 3])
    assert loss(outputs, pairs).tolist() == [9.0, 6.0]
    assert map_outputs(len, {"x": [torch.ones(4), None]}) == {"x": [4, None]}
