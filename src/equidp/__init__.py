"""equidp: train models with differential privacy, and measure what each group loses.

Public names are loaded when they are first used (PEP 562). `__init__.pyi` lists them for type checkers.
"""

import importlib
import importlib.metadata
import importlib.util
from typing import Any

from equidp._lazy import lazy_names

_HOMES = {
    "accounting.risk": "Risk RiskTarget",
    "audit": "audit_step",
    "comparison.result": "Comparison",
    "data.dataset": "DataSource DataSplit GroupedDataset",
    "data.people": "by_person",
    "diagnostics": "Diagnosis Diagnostics Effort diagnose",
    "display": "Column Interval Table",
    "engines": "make_compatible",
    "errors": "BudgetError DataError EquidpError ModelError PolicyError SettingError",
    "estimator": "PrivateClassifier",
    "evaluation.metrics": "METRICS Metric",
    "evaluation.predictions": "Decision Predictions",
    "individual.report": "IndividualReport",
    "individual.settings": "Individual",
    "ledger.ledger": "Ledger",
    "kernel.noisy_sum": "private_sum",
    "kernel.policy": "NoState Policy Setting",
    "policies.automatic": "Automatic",
    "policies.checks": "check_policy",
    "policies.dpsgd": "DPSGD",
    "policies.dpsgd_f": "DPSGDF DPSGDFCode",
    "policies.global_": "Global",
    "policies.global_adapt": "GlobalAdapt",
    "policies.naive": "Naive",
    "policies.prototypes": "Prototypes",
    "policies.psac": "PSAC",
    "policies.quantile": "Quantile QuantileBounded",
    "policies.sgd": "SGD",
    "policies.softadaclip": "SoftAdaClip",
    "policies.table": "METHODS Method",
    "report.card": "write_card",
    "runs.comparison": "compare",
    "runs.saved": "open_run",
    "runs.session": "train",
    "runs.verify": "verify",
    "tables.inspect": "inspect",
    "training.checkpoint": "Checkpoints",
    "training.optimizers": "PrivateAdam",
    "training.plan": "Plan account default_plan",
    "training.progress": "LogReleases ProgressBar",
    "training.record": "EpochRecorder RunRecord",
    "training.release": "Release",
    "training.resolved": "ResolvedPlan",
    "training.run": "Run",
    "training.trainer": "Callback Trainer",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME)


_load = lazy_names("equidp", {f"equidp.{home}": names for home, names in _HOMES.items()})


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.metadata.version("equidp")
    if name not in _HOME and not name.startswith("_") and importlib.util.find_spec(f"equidp.{name}"):
        return importlib.import_module(f"equidp.{name}")
    return _load(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
