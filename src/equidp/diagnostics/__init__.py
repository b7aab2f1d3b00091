"""Where the disparity comes from: what clipping and noise do to each group's loss, from raw data."""

from equidp.diagnostics.callback import DiagnosisPlan, Diagnostics
from equidp.diagnostics.diagnose import Diagnosis, diagnose
from equidp.diagnostics.effort import Cost, Effort

__all__ = ["Cost", "Diagnosis", "DiagnosisPlan", "Diagnostics", "Effort", "diagnose"]
