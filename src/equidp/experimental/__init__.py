"""Young parts, which may change or go; docs/experimental.md says what moves one up.

Whatever a guarantee or a default rests on belongs elsewhere: nothing outside this folder imports it.
"""

from equidp.experimental.device_randomness import DeviceRandomness

__all__ = ["DeviceRandomness"]
