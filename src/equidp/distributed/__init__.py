"""Private steps of several processes, by torch.distributed.

The protocol of processes and the single process belong in kernel/; the comparison of settings and data
before a run in training/agreement.py.
"""
