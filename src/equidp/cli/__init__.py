"""The command line: one module for each command."""

from equidp.cli import advise, audit, compare, ledger, plan, predict, train
from equidp.cli.app import app, main

__all__ = ["advise", "app", "audit", "compare", "ledger", "main", "plan", "predict", "train"]
