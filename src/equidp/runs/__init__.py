"""Runs on disk: settings, folders, files with checksums, and releases in addition to the steps.

What a folder of a run holds belongs here. The training itself is in training/, and the options of commands
follow from the settings, in cli/.
"""
