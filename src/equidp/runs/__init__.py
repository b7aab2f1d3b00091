"""Runs on disk: their settings, folders, files with checksums, and releases beside the steps.

What a folder of a run holds belongs here. The training itself is in training/, and the options of commands
follow from the settings, in cli/.
"""
