"""Advice on method, binning, features and settings, if the user gives none.

Rules that follow from public facts belong here, with typed reasons.
Choices by results on the data are in comparison/, and sentences on reasons are in report/.
"""
