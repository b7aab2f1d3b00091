from equidp.accounting.risk import Risk as Risk, RiskTarget as RiskTarget
from equidp.audit import (
    audit_step as audit_step,
)
from equidp.comparison.result import Comparison as Comparison
from equidp.data.dataset import (
    DataSource as DataSource,
    DataSplit as DataSplit,
    GroupedDataset as GroupedDataset,
)
from equidp.data.people import by_person as by_person
from equidp.diagnostics import (
    Diagnosis as Diagnosis,
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
from equidp.individual.report import IndividualReport as IndividualReport
from equidp.individual.settings import Individual as Individual
from equidp.kernel.noisy_sum import private_sum as private_sum
from equidp.kernel.policy import NoState as NoState, Policy as Policy, Setting as Setting
from equidp.ledger.ledger import Ledger as Ledger
from equidp.policies.automatic import Automatic as Automatic
from equidp.policies.checks import check_policy as check_policy
from equidp.policies.dpsgd import DPSGD as DPSGD
from equidp.policies.dpsgd_f import DPSGDF as DPSGDF, DPSGDFCode as DPSGDFCode
from equidp.policies.global_ import Global as Global
from equidp.policies.global_adapt import GlobalAdapt as GlobalAdapt
from equidp.policies.naive import Naive as Naive
from equidp.policies.prototypes import Prototypes as Prototypes
from equidp.policies.psac import PSAC as PSAC
from equidp.policies.quantile import Quantile as Quantile, QuantileBounded as QuantileBounded
from equidp.policies.sgd import SGD as SGD
from equidp.policies.softadaclip import SoftAdaClip as SoftAdaClip
from equidp.policies.table import METHODS as METHODS, Method as Method
from equidp.report.card import write_card as write_card
from equidp.runs.comparison import compare as compare
from equidp.runs.saved import open_run as open_run
from equidp.runs.session import train as train
from equidp.runs.verify import verify as verify
from equidp.tables.inspect import inspect as inspect
from equidp.training.checkpoint import Checkpoints as Checkpoints
from equidp.training.optimizers import PrivateAdam as PrivateAdam
from equidp.training.plan import (
    Plan as Plan,
    account as account,
    default_plan as default_plan,
)
from equidp.training.progress import LogReleases as LogReleases, ProgressBar as ProgressBar
from equidp.training.record import EpochRecorder as EpochRecorder, RunRecord as RunRecord
from equidp.training.release import Release as Release
from equidp.training.resolved import ResolvedPlan as ResolvedPlan
from equidp.training.run import Run as Run
from equidp.training.trainer import Callback as Callback, Trainer as Trainer

__version__: str
