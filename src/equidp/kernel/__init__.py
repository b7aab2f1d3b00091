"""Trusted kernel: one private run of any method, from a sample to its noise and its epsilon.

What a guarantee of one run rests on belongs here and nowhere else. Methods, engines, records on disk and
several runs are in other folders; docs/guarantees.md names the files of each promise.

`run` takes a step and `sampling` draws it. `step` is the mechanism: `engine` measures, `policy` decides,
`bounding` holds it to its word, `noisy_sum` adds what `noise` draws. `event` is what a step costs, `epsilon`
what all cost together.
"""
