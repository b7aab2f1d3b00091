from equidp.accounting.budget import PrivacyBudget as PrivacyBudget
from equidp.accounting.risk import Risk as Risk, RiskTarget as RiskTarget
from equidp.accounting.target import Target as Target
from equidp.audit import (
    audit_step as audit_step,
)
from equidp.comparison.compare import compare as compare
from equidp.comparison.result import Comparison as Comparison
from equidp.data.dataset import (
    DataSource as DataSource,
    DataSplit as DataSplit,
    GroupedDataset as GroupedDataset,
)
from equidp.data.people import by_person as by_person
from equidp.data.views import Views as Views
from equidp.diagnostics import (
    DiagnosisPlan as DiagnosisPlan,
    Diagnostics as Diagnostics,
    Effort as Effort,
    diagnose as diagnose,
)
from equidp.display import Column as Column, Interval as Interval, Table as Table
from equidp.engines import make_compatible as make_compatible
from equidp.errors import (
    BudgetError as BudgetError,
    DataError as DataError,
    EquidpError as EquidpError,
    ModelError as ModelError,
    PolicyError as PolicyError,
    SettingError as SettingError,
)
from equidp.estimator import PrivateClassifier as PrivateClassifier
from equidp.evaluation.metrics import METRICS as METRICS, Metric as Metric
from equidp.evaluation.predictions import Decision as Decision, Predictions as Predictions
from equidp.individual import (
    IndividualAccountant as IndividualAccountant,
    IndividualClipping as IndividualClipping,
    IndividualReport as IndividualReport,
)
from equidp.kernel.noisy_sum import private_sum as private_sum
from equidp.kernel.policy import NoState as NoState, Policy as Policy, Setting as Setting
from equidp.ledger.file import LedgerFile as LedgerFile
from equidp.policies import (
    DPSGD as DPSGD,
    DPSGDF as DPSGDF,
    PSAC as PSAC,
    SGD as SGD,
    Automatic as Automatic,
    DPSGDFCode as DPSGDFCode,
    FairLens as FairLens,
    Global as Global,
    GlobalAdapt as GlobalAdapt,
    Naive as Naive,
    Prototypes as Prototypes,
    Quantile as Quantile,
    QuantileBounded as QuantileBounded,
    SoftAdaClip as SoftAdaClip,
    check_policy as check_policy,
)
from equidp.policies.table import METHODS as METHODS, Method as Method
from equidp.report.audit import print_audit as print_audit
from equidp.report.card import write_card as write_card
from equidp.report.comparison import print_comparison as print_comparison, write_report as write_report
from equidp.report.figures import plot as plot, save_figures as save_figures
from equidp.training.averages import WeightAverage as WeightAverage
from equidp.training.checkpoint import Checkpoints as Checkpoints
from equidp.training.optimizers import PrivateAdam as PrivateAdam
from equidp.training.plan import Plan as Plan, default_plan as default_plan
from equidp.training.progress import LogReleases as LogReleases, ProgressBar as ProgressBar
from equidp.training.record import EpochRecorder as EpochRecorder, RunRecord as RunRecord
from equidp.training.run import Run as Run
from equidp.training.trainer import Callback as Callback, Trainer as Trainer

__version__: str
