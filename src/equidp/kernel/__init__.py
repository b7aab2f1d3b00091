"""Trusted kernel: one private run of any method in one process, from a sample to its noise and its epsilon.

What a guarantee of one run rests on belongs here and nowhere else. Methods, engines, records on disk, several
processes and several runs are in other folders; docs/guarantees.md names the files of each promise.
"""
