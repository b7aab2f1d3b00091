"""The record of what all runs on one dataset spent, which survives a crash, and the limit of all of them."""
