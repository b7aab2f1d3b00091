"""The command line: one module for each command."""

from equidp.cli import ablate, advise, audit, compare, ledger, predict, train
from equidp.cli import account as plan
from equidp.cli.app import app, main

__all__ = ["ablate", "advise", "app", "audit", "compare", "ledger", "main", "plan", "predict", "train"]
