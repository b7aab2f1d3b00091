"""Empirical lower bounds on epsilon: what an adversary with canaries can prove about a training procedure.

Attacks that bound epsilon from below belong here; upper bounds, which hold for all attacks, are in kernel/
and accounting/.
"""

from equidp.audit.result import Audit, GroupBound
from equidp.audit.step import audit_step

__all__ = ["Audit", "GroupBound", "audit_step"]
