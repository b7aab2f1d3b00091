"""Individual accounting, and individual clipping, which makes its epsilons guarantees (Yu et al. 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from equidp.engines.model import device_of
from equidp.errors import SettingError
from equidp.individual.account import ExampleAccount
from equidp.individual.examples import in_memory
from equidp.kernel.generators import restore_generators
from equidp.training.trainer import Trainer


class IndividualAccountant(ExampleAccount):
    """Counts, in every step, the share of the sensitivity that each training example's gradient could use.

    Works for every policy and leaves training as it is. A norm holds until it is taken again; weights follow
    the policy's state in every step. An example whose norm was never taken counts as using all of the
    sensitivity.

    Args:
        interval: steps between passes that take the norms of all examples. 1 is exact, unless the model draws
            random numbers (dropout); more give estimates. "sampled": each example's norm is that of its last
            draw, an estimate that needs no pass over the data. Give this or `per_epoch`.
        per_epoch: passes in an epoch. With "sampled", norms are those of the last draw or pass, so that few
            passes do: 0.1 is one before the first step and one every ten epochs.
        grid: width of the grid that shares are rounded to.
        rounding: "up", or "nearest" as in Yu et al., which can understate.
        chunk_size: examples whose norms are taken at a time; bounds memory. None: 4096 rows of a table,
            128 images on a CPU, or 256 other examples.
        memory_limit: bytes; a larger table of histories is kept in a temporary file.
        missed_at_worst: count steps taken before this accountant watched as if every example had used all of
            the sensitivity, an upper bound; otherwise such a run is refused.

    Raises:
        SettingError: settings out of range. At the start of training, before anything is spent: a run without
            noise, or training data that is not in memory.

    Example:
        >>> import torch, equidp
        >>> groups = torch.tensor([0, 0, 1, 1])
        >>> data = equidp.GroupedDataset(torch.eye(4), groups, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> accountant = equidp.IndividualAccountant(interval=1)
        >>> trainer = equidp.Trainer(model, optimizer, data, policy=equidp.DPSGD(), batch_size=2, steps=3,
        ...                          noise_multiplier=2.0, delta=0.01, callbacks=[accountant])
        >>> run = trainer.fit()
        >>> bool(accountant.report(trainer).sensitive_epsilons.max() <= run.epsilon())
        True
    """

    def _begin(self, trainer: Trainer) -> bool:
        if self._interval == "sampled":
            trainer.limit_shares(self._counted.draw)
        return self._interval == 1 and self._rounding == "up" and _repeats(trainer)

    def _check_step(self, trainer: Trainer) -> None:
        """Accepts every step, since it only watches."""


class IndividualClipping(ExampleAccount):
    """Accounts for each example, and limits its gradient to the share accounted for (Yu et al., Algorithm 3).

    Caps an example's weight so that it uses no more of the sensitivity than the share computed from its norm
    when norms were last taken. Its epsilon is then a guarantee, however rarely norms are taken; in return,
    gradients that have grown since are shortened. Works with every policy, through `Trainer.limit_shares`.

    Args: as those of `IndividualAccountant`.

    Raises:
        SettingError: as `IndividualAccountant`; at the start of training also for "sampled", which has no
            norms from before a batch is drawn.

    Example:
        >>> import equidp
        >>> callbacks = [equidp.IndividualClipping(per_epoch=3)]  # of a Trainer, as in IndividualAccountant
    """

    def _begin(self, trainer: Trainer) -> bool:
        if self._interval == "sampled":
            raise SettingError(
                'interval="sampled"; individual clipping needs norms from before a batch is drawn: give '
                "steps, or per_epoch."
            )
        self._trainer = trainer
        trainer.limit_shares(self._limits)
        return True

    def _check_step(self, trainer: Trainer) -> None:
        if trainer.share_limits != self._limits:
            raise SettingError(
                "a step was taken without the limits of IndividualClipping, which end with fit(); call "
                "before_training(trainer) before the first step of a loop of your own."
            )

    def _limits(self, indices: Tensor, norms: Tensor) -> Tensor:
        return self._counted.shares(self._trainer.policy_state, indices).to(norms)


def _repeats(trainer: Trainer) -> bool:
    """Returns whether two passes give the same norms, which they do unless the model draws random numbers."""
    in_memory(trainer, "individual accounting needs")
    public = getattr(trainer.engine, "public", None)
    if public is None:  # an engine that was given as an object, and tried on nothing
        return False
    with restore_generators(device_of(trainer.model)):
        first, second = (trainer.engine(*public).norms.nan_to_num() for _ in range(2))
    return torch.equal(first, second)
