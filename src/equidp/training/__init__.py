"""Training: from a plan and data to a Trainer, and from a Trainer to a Run.

What happens between settings and a trained model in memory belongs here. The private step and its loop are in
kernel/, a run on disk is in runs/.
"""
