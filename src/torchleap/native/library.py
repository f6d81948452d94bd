"""The compiled C code: find the build for this processor and load it through ctypes.

Each user of the library (mix, data, the lazy optimizer) declares the signatures of its own functions.
"""

import ctypes
from ctypes import c_void_p
from functools import cache

import torch

INTERFACE = 4  # as in mix.c
CURE = "With a C compiler, `python -m torchleap.native.build` compiles it."


class Library:
    """The compiled functions, checked to be of the version that this package calls.

    Args:
        functions: The library that ctypes has loaded.
        level: The vector instructions that it was compiled for, such as "avx2".
    """

    def __init__(self, functions: ctypes.CDLL, level: str) -> None:
        if functions.torchleap_interface() != INTERFACE:
            raise OSError(
                f"it has interface {functions.torchleap_interface()}, but {INTERFACE} is expected"
            )
        self.functions = functions
        self.level = level
        self.parallel = (
            _torch_threads()
        )  # address of the function that runs work in torch's threads


@cache
def load() -> "Library | str":
    """Return the library for this processor, or the reason why there is none."""
    from . import (
        build,  # here, so that `python -m torchleap.native.build` is the first to import it
    )

    capability = torch.backends.cpu.get_cpu_capability()
    best = {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "baseline")
    levels = list(build.LEVELS)
    reason = f"torchleap's native kernel has not been compiled. {CURE}"
    for level in levels[levels.index(best) :]:  # this level, or a lower one
        path = build.library(level)
        if not path.exists():
            continue
        try:
            return Library(ctypes.CDLL(str(path)), level)
        except (OSError, AttributeError) as error:
            reason = f"torchleap's native kernel cannot be loaded ({error}). {CURE}"
    return reason


def _torch_threads() -> int | None:
    """Return the address of the function that runs work in torch's pool of threads.

    None where torch is built without OpenMP: the kernel then starts threads of its own.
    """
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, c_void_p).value
    except (AttributeError, OSError):
        return None
