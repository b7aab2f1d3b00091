"""Diagnostics of disparity: what clipping and noise do to each group's loss, from raw data.

Code that reads raw gradients of training data outside the private step belongs here. Metrics of test data are
in evaluation/.
"""

from equidp.diagnostics.callback import Diagnostics
from equidp.diagnostics.diagnose import Diagnosis, diagnose
from equidp.diagnostics.measure import Effort

__all__ = ["Diagnosis", "Diagnostics", "Effort", "diagnose"]
