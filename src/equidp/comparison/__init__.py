"""Comparisons of methods over seeds: what is trained with which settings, where, and with which results.

Plans of comparisons, searches for settings and for baselines, and stored results of runs belong here. One
training is in training/, metrics of one model are in evaluation/, and sentences and pages are in report/.
"""
