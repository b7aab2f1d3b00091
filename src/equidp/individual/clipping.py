"""Holds each example's gradient to what individual accounting counts for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from equidp.errors import SettingError
from equidp.individual.accountant import IndividualAccountant

if TYPE_CHECKING:
    from equidp.training.trainer import Trainer


class IndividualClipping(IndividualAccountant):
    """Accounts for each training example, and holds its gradient to what is accounted for (Yu et al., Algorithm 3).

    An example's weight is capped so that it uses no more of the sensitivity than the share that was worked out from its norm when
    norms were last taken. Its epsilon is a guarantee then, however rarely norms are taken; the price is that gradients which have
    grown since are shortened. Works beside every policy.

    Args and errors: as `IndividualAccountant`; "sampled" is refused.
    """

    def before_training(self, trainer: Trainer) -> None:
        if self._interval == "sampled":
            raise SettingError(
                'interval="sampled"; individual clipping needs norms from before a batch is drawn: give steps, or per_epoch.'
            )
        super().before_training(trainer)
        self._trainer = trainer
        trainer.limit_shares(self._limits)

    def after_step(self, trainer: Trainer) -> None:
        if trainer.share_limits != self._limits:
            raise SettingError(
                "a step was taken without the limits of IndividualClipping, which end with fit(); call before_training(trainer) "
                "before the first step of a loop of your own."
            )
        super().after_step(trainer)

    def _limits(self, indices: Tensor, norms: Tensor) -> Tensor:
        return self._counted.shares(self._trainer.policy, indices).to(norms.device)

    def _bounds_contributions(self, trainer: Trainer) -> bool:
        return True
