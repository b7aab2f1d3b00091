"""A second device for tests where there is no GPU: the CPU by another name (second_device.cpp)."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType

import torch

NAME = "made_up"


@cache
def second_device() -> torch.device:
    """The device, compiled in the first call (about half a minute, kept by torch for later processes)."""
    from torch.utils import cpp_extension

    source = Path(__file__).with_name("second_device.cpp")
    cpp_extension.load(NAME, [str(source)], extra_cflags=["-O0"], is_python_module=False)
    torch.ops.second_device.start()
    torch.utils.rename_privateuse1_backend(NAME)
    module = ModuleType(f"torch.{NAME}")
    for name, answer in {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "manual_seed_all": lambda seed: None,
        "get_amp_supported_dtype": lambda: [torch.bfloat16],
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "device": lambda index: nullcontext(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
    }.items():
        setattr(module, name, answer)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return torch.device(NAME, 0)
