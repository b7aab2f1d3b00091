"""nn.RNN, nn.LSTM, nn.GRU and their cells from single products, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from equidp.engines.layers.projection import Block, Projection
from equidp.errors import ModelError

State = tuple[Tensor, ...]
"""Hidden state [batch, hidden or projected size], and for an LSTM cell state [batch, hidden]."""
Step = Callable[[Tensor, State], State]
"""(the inputs' share of the gates [batch, gates * hidden], state) -> next state."""


def recurrent(
    module: nn.RNNBase, project: Projection, inputs: Tensor | PackedSequence, hx: Any = None
) -> tuple[Tensor | PackedSequence, Any]:
    """nn.RNN.forward, nn.LSTM.forward, nn.GRU.forward; the same arguments and results."""
    lengths = None
    if isinstance(inputs, PackedSequence):
        values, lengths = pad_packed_sequence(inputs)
    else:
        _check_sequences(module, inputs, dimensions=3)
        values = inputs.transpose(0, 1) if module.batch_first else inputs
    present = None
    if lengths is not None:  # which steps each example has, [steps, batch, 1]
        present = (torch.arange(len(values))[:, None] < lengths).unsqueeze(2).to(values.device)
    starts = _starts(module, values, hx)
    ends: list[State] = []
    directions = 2 if module.bidirectional else 1
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"_l{layer}{'_reverse' if direction else ''}"
            gates = project(values, _block(module, "ih", suffix), batch_dimension=1)
            output, state = _scan(
                _step(module, project, suffix), gates, starts[len(ends)], present, backwards=direction == 1
            )
            outputs.append(output)
            ends.append(state)
        values = torch.cat(outputs, dim=2) if directions == 2 else outputs[0]
        if layer + 1 < module.num_layers:
            values = dropout(values, module.dropout, module.training)
    last = tuple(torch.stack(each) for each in zip(*ends, strict=True))
    end = last if isinstance(module, nn.LSTM) else last[0]
    if lengths is not None:
        return pack_padded_sequence(values, lengths, enforce_sorted=False), end
    return values.transpose(0, 1) if module.batch_first else values, end


def cell(module: nn.RNNCellBase, project: Projection, inputs: Tensor, hx: Any = None) -> Any:
    """nn.RNNCell.forward, nn.LSTMCell.forward, nn.GRUCell.forward; the same arguments and results."""
    _check_sequences(module, inputs, dimensions=2)
    long = isinstance(module, nn.LSTMCell)
    if hx is None:
        state: State = (inputs.new_zeros(len(inputs), module.hidden_size),) * (2 if long else 1)
    else:
        state = tuple(hx) if long else (hx,)
    gates = project(inputs, _block(module, "ih", ""))
    following = _step(module, project, "")(gates, state)
    return following if long else following[0]


def _check_sequences(module: nn.Module, inputs: Tensor, *, dimensions: int) -> None:
    if inputs.dim() != dimensions:
        raise ModelError(
            f"{type(module).__name__} got inputs of shape {list(inputs.shape)}; expected one row or sequence "
            f"per example, {dimensions} dimensions.",
            field=type(module).__name__,
        )


def _starts(module: nn.RNNBase, values: Tensor, hx: Any) -> list[State]:
    count = module.num_layers * (2 if module.bidirectional else 1)
    if hx is not None:
        states = hx if isinstance(module, nn.LSTM) else (hx,)
        return list(zip(*(state.unbind(0) for state in states), strict=True))
    batch, outputs = values.shape[1], module.proj_size or module.hidden_size
    hidden, cells = values.new_zeros(batch, outputs), values.new_zeros(batch, module.hidden_size)
    return [(hidden, cells) if isinstance(module, nn.LSTM) else (hidden,)] * count


def _scan(
    step: Step, gates: Tensor, state: State, present: Tensor | None, *, backwards: bool
) -> tuple[Tensor, State]:
    """Outputs [steps, batch, size] in order, and the last state. Missing steps keep the state."""
    outputs: list[Tensor] = []
    steps = list(enumerate(gates.unbind(0)))
    for time, share in reversed(steps) if backwards else steps:
        following = step(share, state)
        output = following[0]
        if present is not None:
            kept = present[time]
            following = tuple(torch.where(kept, new, old) for new, old in zip(following, state, strict=True))
            output = output.masked_fill(~kept, 0.0)
        outputs.append(output)
        state = following
    return torch.stack(outputs[::-1] if backwards else outputs), state


def _step(module: nn.RNNBase | nn.RNNCellBase, project: Projection, suffix: str) -> Step:
    block = _block(module, "hh", suffix)

    def plain(share: Tensor, state: State) -> State:
        activation = torch.tanh if module.nonlinearity == "tanh" else torch.relu
        return (activation(share + project(state[0], block)),)

    def lstm(share: Tensor, state: State) -> State:
        gates = (share + project(state[0], block)).chunk(4, dim=1)
        input_gate, forget_gate, cell_gate, output_gate = gates
        kept = torch.sigmoid(forget_gate) * state[1]
        cell_state = kept + torch.sigmoid(input_gate) * torch.tanh(cell_gate)
        hidden = torch.sigmoid(output_gate) * torch.tanh(cell_state)
        if getattr(module, "proj_size", 0):
            hidden = project(hidden, Block(f"weight_hr{suffix}"))
        return hidden, cell_state

    def gru(share: Tensor, state: State) -> State:
        reset, update, new = share.chunk(3, dim=1)
        old_reset, old_update, old_new = project(state[0], block).chunk(3, dim=1)
        update_gate = torch.sigmoid(update + old_update)
        candidate = torch.tanh(new + torch.sigmoid(reset + old_reset) * old_new)
        return ((1 - update_gate) * candidate + update_gate * state[0],)

    if isinstance(module, nn.LSTM | nn.LSTMCell):
        return lstm
    return gru if isinstance(module, nn.GRU | nn.GRUCell) else plain


def _block(module: nn.RNNBase | nn.RNNCellBase, part: str, suffix: str) -> Block:
    return Block(f"weight_{part}{suffix}", f"bias_{part}{suffix}" if module.bias else None)
