"""PreprocessingRelease: scales and lists of categories by private preprocessing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, final

from equidp._validate import unknown_name
from equidp.accounting.planned import PREPROCESSING, check_share
from equidp.data.table import EXACT, PREPROCESSING_SHARE, PREPROCESSINGS, PRIVATE, can_be_private
from equidp.errors import SettingError
from equidp.kernel.ledger import Payment
from equidp.kernel.noise import SystemRandomness
from equidp.policies.setting import MethodSetting
from equidp.runs.releases.release import Preparation, RunRelease
from equidp.tables.release import Release
from equidp.training.plan import Plan


@final
@dataclass(frozen=True)
class PreprocessingRelease(RunRelease):
    """Scales and lists of categories of a table, released with noise before the first step.

    Attributes:
        preprocessing_share: share of epsilon, in (0, 1).
    """

    name = PREPROCESSING
    file = "preprocessing.json"
    contents = (
        "ranges, edges of intervals, means, deviations and categories, released with noise and counted in "
        "epsilon. Categories are numbers of cells that a public hash puts texts into. Predictions for new "
        "rows need it."
    )
    group = "Preprocessing"
    audited = ("tables/release.py", "tables/private_encode.py")

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
                f"--set preprocessing_share={share:g} is for --preprocessing private; give that too."
            )
        return None

    def epsilon(self, target: float | None) -> float | None:
        return None if target is None else self.preprocessing_share * target

    def check(self, epsilon: float | None, method: str, plan: Plan) -> None:
        check_share("preprocessing_share", self.preprocessing_share, epsilon)

    def draw(self, preparation: Preparation, payment: Payment, folder: Path) -> Preparation:
        source = can_be_private(preparation.source)
        rows = source.split_rows(preparation.seed)
        release = Release(payment.draw(), SystemRandomness())
        encoder = source.private_encoder(rows, release)
        split = rows.encode_split(encoder, source.notes(encoder))
        return replace(preparation, split=split, encoder=encoder)

    def card_entries(self, epsilon: float | None, folder: Path, units: str) -> dict[str, str]:
        return {"preprocessing": f"private, for a share of {self.preprocessing_share:g} of epsilon"}
