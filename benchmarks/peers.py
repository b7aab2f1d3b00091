"""Steps that run.py compares, outside of PyTorch: JAX, JAX Privacy, and logistic regression in numpy by hand.

JAX has the models of `LAYERS` alone. Samples are padded to multiples of 32, so that few sizes are compiled.
Noise is of generators that are not made for secrets, as JAX has no other; sums are in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy
import numpy as np
import optax

LEARNING_RATE, MULTIPLE = 0.01, 32
LAYERS: dict[str, tuple[Any, ...]] = {
    "logistic": ("classes",),
    "mlp": (256, "tanh", 256, "tanh", "classes"),
    "lenet": ((20, 5), "relu", "pool", (50, 5), "relu", "pool", 500, "relu", "classes"),
    "tanh-cnn": ((32, 3), "tanh", (16, 3), "tanh", "classes"),
}
"""By name in `equidp.models`: a width, (maps, side) of a convolution, or a function."""
Arrays = Sequence[Any]
Update = Callable[[np.ndarray, np.ndarray], Arrays]


class Stepper:
    """A contender on a subject, as `serve` asks for it."""

    def __init__(self, asked: dict[str, Any], rows: Sequence[np.ndarray]) -> None:
        if asked["contender"] == "numpy by hand":
            self._step = _by_hand(asked)
        else:
            self._step = _jitted(asked, private=asked["contender"] == "JAX Privacy")

    def ready(self, sample: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        inputs, targets = sample[:2]
        # Channels last, as JAX's guides have images.
        return np.ascontiguousarray(np.moveaxis(inputs, 1, -1) if inputs.ndim == 4 else inputs), targets

    def take(self, samples: list[tuple[np.ndarray, np.ndarray]]) -> None:
        """Take a step on each sample, and wait until the parameters are there."""
        for inputs, targets in samples:
            parameters = self._step(inputs, targets)
        jax.block_until_ready(parameters)

    def peak_bytes(self, sample: Sequence[np.ndarray]) -> float:
        return math.nan


def _jitted(asked: dict[str, Any], *, private: bool) -> Update:
    if asked["model"] not in LAYERS:
        raise ValueError(f"no model {asked['model']!r} in peers.py")
    functions = {
        "tanh": jnp.tanh,
        "relu": jax.nn.relu,
        "pool": lambda x: jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        ),
    }

    def layer(kind: Any, x: Any, weights: Any) -> Any:
        if isinstance(kind, str) and kind in functions:
            return functions[kind](x)
        weight, bias = weights
        if isinstance(kind, tuple):
            return (
                jax.lax.conv_general_dilated(
                    x, weight, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
                )
                + bias
            )
        return x.reshape(len(x), -1) @ weight + bias

    def logits(parameters: Any, x: Any) -> Any:
        for kind, weights in zip(LAYERS[asked["model"]], parameters, strict=True):
            x = layer(kind, x, weights)
        return x

    draw = np.random.default_rng(0)
    channels, *sides = asked["shape"]
    size = [1, *sides, channels]
    parameters: list[Any] = []
    for kind in LAYERS[asked["model"]]:
        if isinstance(kind, str) and kind in functions:
            parameters.append(())
            size = [1, *(side // 2 for side in size[1:3]), size[3]] if kind == "pool" else size
            continue
        fan_in = size[-1] * kind[1] ** 2 if isinstance(kind, tuple) else math.prod(size)
        outputs = asked["classes"] if kind == "classes" else kind[0] if isinstance(kind, tuple) else kind
        shape = (kind[1], kind[1], size[-1], outputs) if isinstance(kind, tuple) else (fan_in, outputs)
        weight = draw.uniform(-1, 1, shape).astype(np.float32) / fan_in**0.5
        parameters.append((jnp.asarray(weight), jnp.zeros(outputs)))
        size = (
            [1, *(side - kind[1] + 1 for side in size[1:3]), outputs]
            if isinstance(kind, tuple)
            else [outputs]
        )

    def losses(parameters: Any, x: Any, y: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(logits(parameters, x), y)

    clipped = jax_privacy.clipped_grad(
        lambda parameters, x, y: losses(parameters, x, y).mean(), l2_clip_norm=1.0, batch_argnums=(1, 2)
    )

    def gradient(parameters: Any, x: Any, y: Any, padding: Any, key: Any) -> Any:
        if not private:
            return jax.grad(lambda p: (losses(p, x, y) * ~padding).sum() / asked["batch_size"])(parameters)
        sums, tree = jax.tree.flatten(clipped(parameters, x, y, is_padding_example=padding))
        keys = jax.random.split(key, len(sums))
        noisy = [each + jax.random.normal(k, each.shape) for each, k in zip(sums, keys, strict=True)]
        return jax.tree.unflatten(tree, [each / asked["batch_size"] for each in noisy])

    def update(parameters: Any, key: Any, x: Any, y: Any, padding: Any) -> Any:
        key, own = jax.random.split(key)
        gradients = gradient(parameters, x, y, padding, own)
        return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients), key

    state, compiled = [parameters, jax.random.key(0)], jax.jit(update)

    def step(inputs: np.ndarray, targets: np.ndarray) -> Arrays:
        more = -len(inputs) % MULTIPLE
        padding = np.arange(len(inputs) + more) >= len(inputs)
        x = np.concatenate([inputs, np.zeros((more, *inputs.shape[1:]), inputs.dtype)])
        y = np.concatenate([targets, np.zeros(more, targets.dtype)])
        state[:] = compiled(*state, x, y, padding)
        leaves: Arrays = jax.tree.leaves(state[0])
        return leaves

    return step


def _by_hand(asked: dict[str, Any]) -> Update:
    """DP-SGD of logistic regression: an example's gradient is its input times its error, so is its norm."""
    if asked["model"] != "logistic":
        raise ValueError("by hand there is logistic regression alone")
    draw = np.random.default_rng(0)
    weights = np.zeros((math.prod(asked["shape"]) + 1, asked["classes"]), np.float32)

    def step(inputs: np.ndarray, targets: np.ndarray) -> Arrays:
        x = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32)], axis=1)
        scores = x @ weights
        errors = np.exp(scores - scores.max(axis=1, keepdims=True))
        errors /= errors.sum(axis=1, keepdims=True)
        errors[np.arange(len(x)), targets] -= 1
        norms = np.sqrt(np.einsum("ij,ij->i", x, x) * np.einsum("ij,ij->i", errors, errors))
        errors *= np.minimum(1, 1 / np.maximum(norms, 1e-12))[:, None]
        noise = draw.standard_normal(weights.shape, np.float32)
        weights[:] -= LEARNING_RATE * (x.T @ errors + noise) / asked["batch_size"]
        return [weights]

    return step
