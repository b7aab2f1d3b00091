"""Ledgers on disk, which survive a crash: the file, its format and its locks.

Events, the ledger's protocol and the ledger in memory belong in kernel/; budgets of several runs
belong in accounting/.
"""
