"""Load the compiled C code that suits this processor.

Each user (`mix`, `data`, the lazy optimizer) declares the signatures of its own functions with
`Library.function`; how the library is found, checked and loaded is known only here.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

INTERFACE = 4  # the version of the C functions, as in mix.c
CURE = "With a C compiler, `python -m torchleap.native.build` compiles it."


class Library:
    """The compiled functions, of the version that this package calls.

    Args:
        compiled: The shared library that ctypes has loaded.
        level: The vector instructions that it was compiled for, such as "avx2".

    Attributes:
        parallel: The address of the function that runs work in torch's pool of threads, which the
            C functions take as an argument. None where torch is built without OpenMP; the C
            functions then start threads of their own or use one.
    """

    def __init__(self, compiled: ctypes.CDLL, level: str) -> None:
        interface = compiled.torchleap_interface()
        if interface != INTERFACE:
            raise OSError(f"it has interface {interface}, but {INTERFACE} is expected")
        self._compiled = compiled
        self.level = level
        self.parallel = _find_torch_threads()

    def function(self, name: str, arguments: Sequence[Any], result: Any = None) -> Any:
        """Return a C function with its signature.

        Args:
            name: Its name without the prefix "torchleap_".
            arguments: The ctypes types of its arguments.
            result: The ctypes type of its result; None means that it returns nothing.
        """
        found = getattr(self._compiled, f"torchleap_{name}")
        found.argtypes = list(arguments)
        found.restype = result
        return found


def load() -> Library | None:
    """Return the library for this processor, or None where it cannot be loaded."""
    return _search()[0]


def obstacle() -> str:
    """Return the reason why there is no library, with the cure; empty if there is one."""
    return _search()[1]


@cache
def _search() -> tuple[Library | None, str]:
    """Return the best library that can be loaded; or None and the reason."""
    from . import build  # here, so that `python -m torchleap.native.build` imports it first

    capability = torch.backends.cpu.get_cpu_capability()
    best = {"AVX512": "avx512", "AVX2": "avx2"}.get(capability, "baseline")
    levels = list(build.LEVELS)
    reason = f"torchleap's native kernel has not been compiled. {CURE}"
    for level in levels[levels.index(best) :]:  # the best level, then the lower ones
        path = build.library_path(level)
        if not path.exists():
            continue
        try:
            return Library(ctypes.CDLL(str(path)), level), ""
        except (OSError, AttributeError) as error:
            reason = f"torchleap's native kernel cannot be loaded ({error}). {CURE}"
    return None, reason


def _find_torch_threads() -> int | None:
    """Return the address of the OpenMP function that torch's own operations run in."""
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except (AttributeError, OSError):
        return None
