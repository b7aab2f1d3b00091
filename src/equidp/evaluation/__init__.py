"""Evaluation: from a model's predictions on test data to metrics by group, costs of privacy and intervals.

Values and typed findings belong here. Their sentences, tables and figures are in report/. Code that reads
training data is in diagnostics/.
"""
