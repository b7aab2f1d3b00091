"""Trials of a model, its loss and its engine before any budget is spent, on rows that are made up or public.

A trial refuses what it finds; it cannot exclude what it does not try (docs/not-covered.md), which
`engine="functional"` excludes. No further checks belong here, and nothing that runs in a training step.
"""
