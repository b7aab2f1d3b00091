"""Trusted kernel: one private run of any method, from a sample to its noise and its epsilon.

Code that the guarantee of one run depends on belongs here, and nothing else. Methods, engines, records on
disk and the handling of several runs are in other folders. docs/guarantees.md names the files behind each
promise.

`run` takes the steps, on samples that `sampling` draws. `step` is the mechanism: `engine` measures gradients,
`policy` chooses weights, `bounding` enforces the bounds, and `noisy_sum` adds the noise that `noise` draws.
`event` is the cost of one step, and `epsilon` the cost of all steps together.
"""
