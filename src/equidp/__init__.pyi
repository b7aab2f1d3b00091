from equidp.accounting.budget import PrivacyBudget as PrivacyBudget
from equidp.comparison.compare import compare as compare
from equidp.comparison.result import Comparison as Comparison
from equidp.data.dataset import (
    DataSource as DataSource,
)
from equidp.data.dataset import (
    DataSplit as DataSplit,
)
from equidp.data.dataset import (
    GroupedDataset as GroupedDataset,
)
from equidp.diagnostics import (
    Diagnosis as Diagnosis,
)
from equidp.diagnostics import (
    DiagnosisPlan as DiagnosisPlan,
)
from equidp.diagnostics import (
    Diagnostics as Diagnostics,
)
from equidp.diagnostics import (
    Effort as Effort,
)
from equidp.diagnostics import (
    diagnose as diagnose,
)
from equidp.engines import make_compatible as make_compatible
from equidp.errors import (
    ApproximationWarning as ApproximationWarning,
)
from equidp.errors import (
    BudgetError as BudgetError,
)
from equidp.errors import (
    CheckpointError as CheckpointError,
)
from equidp.errors import (
    DataError as DataError,
)
from equidp.errors import (
    DataWarning as DataWarning,
)
from equidp.errors import (
    EquidpError as EquidpError,
)
from equidp.errors import (
    ModelError as ModelError,
)
from equidp.errors import (
    PolicyError as PolicyError,
)
from equidp.errors import (
    PrivacyWarning as PrivacyWarning,
)
from equidp.errors import (
    SettingError as SettingError,
)
from equidp.errors import (
    TrainingStopped as TrainingStopped,
)
from equidp.estimator import (
    PrivateClassifier as PrivateClassifier,
)
from equidp.estimator import (
    PrivateRegressor as PrivateRegressor,
)
from equidp.individual import (
    IndividualAccountant as IndividualAccountant,
)
from equidp.individual import (
    IndividualClipping as IndividualClipping,
)
from equidp.individual import (
    IndividualReport as IndividualReport,
)
from equidp.kernel.ledger_file import LedgerFile as LedgerFile
from equidp.kernel.noisy_sum import private_sum as private_sum
from equidp.kernel.step import PrivateStep as PrivateStep
from equidp.policies import (
    DPSGD as DPSGD,
)
from equidp.policies import (
    DPSGDF as DPSGDF,
)
from equidp.policies import (
    PSAC as PSAC,
)
from equidp.policies import (
    SGD as SGD,
)
from equidp.policies import (
    Automatic as Automatic,
)
from equidp.policies import (
    DPSGDFCode as DPSGDFCode,
)
from equidp.policies import (
    Global as Global,
)
from equidp.policies import (
    GlobalAdapt as GlobalAdapt,
)
from equidp.policies import (
    Naive as Naive,
)
from equidp.policies import (
    Policy as Policy,
)
from equidp.policies import (
    Quantile as Quantile,
)
from equidp.policies import (
    check_policy as check_policy,
)
from equidp.policies.methods import METHODS as METHODS
from equidp.report.card import write_card as write_card
from equidp.report.page import write_report as write_report
from equidp.report.terminal import print_comparison as print_comparison
from equidp.training.checkpoint import Checkpoints as Checkpoints
from equidp.training.plan import (
    Plan as Plan,
)
from equidp.training.plan import (
    default_plan as default_plan,
)
from equidp.training.progress import ProgressBar as ProgressBar
from equidp.training.record import RunRecord as RunRecord
from equidp.training.recorder import EpochRecorder as EpochRecorder
from equidp.training.run import Run as Run
from equidp.training.trainer import (
    Callback as Callback,
)
from equidp.training.trainer import (
    Trainer as Trainer,
)
