"""Diagnostics of disparity: what clipping and noise do to each group's loss, from raw data.

What reads raw gradients of training data beside the private step belongs here; metrics of test data are in
evaluation/.
"""

from equidp.diagnostics.callback import Diagnostics
from equidp.diagnostics.diagnose import Diagnosis, diagnose
from equidp.diagnostics.measure import Effort

__all__ = ["Diagnosis", "Diagnostics", "Effort", "diagnose"]
