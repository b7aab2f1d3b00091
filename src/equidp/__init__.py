"""equidp: differentially private training at the same price for every group."""

from equidp.budget import PrivacyBudget
from equidp.callbacks import Callback, EpochRecorder, ProgressBar
from equidp.checkpoint import Checkpoints
from equidp.compare import Comparison, compare, default_plan
from equidp.data.base import DataSource, DataSplit, GroupedDataset
from equidp.diagnostics import Diagnosis, DiagnosisPlan, Diagnostics, Effort, diagnose
from equidp.engines import make_compatible
from equidp.errors import (
    ApproximationWarning,
    BudgetError,
    CheckpointError,
    DataError,
    DataWarning,
    EquidpError,
    ModelError,
    PolicyError,
    PrivacyWarning,
    SettingError,
    TrainingStopped,
)
from equidp.estimator import PrivateClassifier, PrivateRegressor
from equidp.individual import IndividualAccountant, IndividualClipping, IndividualReport
from equidp.ledger_file import LedgerFile
from equidp.mechanism import PrivateStep, private_sum
from equidp.plans import METHODS, Plan
from equidp.policies import (
    DPSGD,
    DPSGDF,
    PSAC,
    SGD,
    Automatic,
    DPSGDFCode,
    Global,
    GlobalAdapt,
    Naive,
    Policy,
    Quantile,
    check_policy,
)
from equidp.record import RunRecord
from equidp.run import Run
from equidp.training import Trainer

__all__ = [
    "DPSGD",
    "DPSGDF",
    "METHODS",
    "PSAC",
    "SGD",
    "ApproximationWarning",
    "Automatic",
    "BudgetError",
    "Callback",
    "CheckpointError",
    "Checkpoints",
    "Comparison",
    "DPSGDFCode",
    "DataError",
    "DataSource",
    "DataSplit",
    "DataWarning",
    "Diagnosis",
    "DiagnosisPlan",
    "Diagnostics",
    "Effort",
    "EpochRecorder",
    "EquidpError",
    "Global",
    "GlobalAdapt",
    "GroupedDataset",
    "IndividualAccountant",
    "IndividualClipping",
    "IndividualReport",
    "LedgerFile",
    "ModelError",
    "Naive",
    "Plan",
    "Policy",
    "PolicyError",
    "PrivacyBudget",
    "PrivacyWarning",
    "PrivateClassifier",
    "PrivateRegressor",
    "PrivateStep",
    "ProgressBar",
    "Quantile",
    "Run",
    "RunRecord",
    "SettingError",
    "Trainer",
    "TrainingStopped",
    "check_policy",
    "compare",
    "default_plan",
    "diagnose",
    "make_compatible",
    "private_sum",
]
