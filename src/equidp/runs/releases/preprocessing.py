"""PreprocessingRelease: scales and lists of categories by private preprocessing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self, final

from equidp._validate import unknown_name
from equidp.accounting.planned import PREPROCESSING, check_share
from equidp.data.table import EXACT, PREPROCESSING_SHARE, PREPROCESSINGS, PRIVATE, can_be_private
from equidp.errors import SettingError
from equidp.kernel.noise import SystemRandomness
from equidp.policies.setting import MethodSetting
from equidp.tables.release import Release
from equidp.training import release
from equidp.training.plan import Plan

if TYPE_CHECKING:
    from equidp.runs.begin import PreparedRun


@final
@dataclass(frozen=True)
class PreprocessingRelease(release.Release):
    """Scales and lists of categories of a table, released with noise before the first step.

    Attributes:
        preprocessing_share: share of epsilon, in (0, 1).
    """

    name = PREPROCESSING
    file = "preprocessing.json"

    preprocessing_share: float = PREPROCESSING_SHARE

    @classmethod
    def options(cls) -> list[MethodSetting]:
        source = (
            "exact: scales and lists of categories from the data as they are, which epsilon does not cover; "
            "private: released with noise."
        )
        share = "Share of --epsilon for private preprocessing; default: 0.1."
        return [
            MethodSetting("preprocessing", str, EXACT, source, PREPROCESSINGS),
            MethodSetting("preprocessing_share", float, None, share),
        ]

    @classmethod
    def from_options(cls, given: Mapping[str, Any]) -> Self | None:
        kind, share = given.get("preprocessing") or EXACT, given.get("preprocessing_share")
        if kind not in PREPROCESSINGS:
            raise unknown_name("preprocessing", kind, PREPROCESSINGS)
        if kind == PRIVATE:
            return cls() if share is None else cls(share)
        if share is not None:
            raise SettingError(
                f"--set privacy.preprocessing_share={share:g} is for --preprocessing private; give that too."
            )
        return None

    def to_options(self) -> dict[str, Any]:
        return {"preprocessing": PRIVATE, "preprocessing_share": self.preprocessing_share}

    def epsilon(self, target: float | None) -> float:
        assert target is not None
        return self.preprocessing_share * target

    def check(self, plan: Plan) -> None:
        check_share("preprocessing_share", self.preprocessing_share, plan.run_epsilon)

    def prepare(self, run: PreparedRun, pay: Callable[..., Any]) -> PreparedRun:
        source = can_be_private(run.config.data.source())
        rows = source.split_rows(run.config.data.seed)
        encoder = pay(self, lambda noise: source.fit_encoder(rows, Release(noise, SystemRandomness())))
        return replace(run, split=rows.encode_split(encoder), encoder=encoder, trainer=None)

    def card_entries(self) -> dict[str, str]:
        return {"preprocessing": f"private, for a share of {self.preprocessing_share:g} of epsilon"}
