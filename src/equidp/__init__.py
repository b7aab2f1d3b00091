"""equidp: differentially private training at the same price for every group."""

from equidp.accounting.budget import PrivacyBudget
from equidp.comparison.compare import compare
from equidp.comparison.result import Comparison
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
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
from equidp.kernel.ledger_file import LedgerFile
from equidp.kernel.noisy_sum import private_sum
from equidp.kernel.step import PrivateStep
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
from equidp.policies.methods import METHODS
from equidp.report.card import write_card
from equidp.report.page import write_report
from equidp.report.terminal import print_comparison
from equidp.training.checkpoint import Checkpoints
from equidp.training.plan import Plan, default_plan
from equidp.training.progress import ProgressBar
from equidp.training.record import RunRecord
from equidp.training.recorder import EpochRecorder
from equidp.training.run import Run
from equidp.training.trainer import Callback, Trainer

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
    "print_comparison",
    "private_sum",
    "write_card",
    "write_report",
]
