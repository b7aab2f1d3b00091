"""Empirical lower bounds on epsilon: what an adversary with canaries can prove about a training procedure."""

from equidp.audit.one_run import audit_training
from equidp.audit.one_step import audit_step
from equidp.audit.result import Audit, GroupBound

__all__ = ["Audit", "GroupBound", "audit_step", "audit_training"]
