"""Compile the native kernel with whatever C compiler there is: `python -m torchleap.native.build`.

The package's build runs the same code. It needs the standard library alone, for it runs before torch is there. One library is
built for each level of vector instructions, and `library.py` picks what the processor can do.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = [HERE / "mix.c", HERE / "codes.c", HERE / "lazy_adam.c"]
FLAGS = ["-std=gnu11", "-O3", "-shared", "-fPIC", "-pthread", "-fopenmp-simd"]
# Sums may be reordered, as vectors need; NaN, infinity and everything else stay as they are.
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros"]
AVX2 = ["-mavx2", "-mfma", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512"]
LEVELS = {"avx512": AVX512, "avx2": AVX2, "baseline": []}


def library(level: str, folder: Path = HERE) -> Path:
    """Where the library for one level lies."""
    return folder / f"_kernel_{level}.so"


def build(folder: Path = HERE) -> list[Path]:
    """Compile the kernel for each level; raises OSError, with the reason, where not even one can be had."""
    compiler = _compiler()
    levels = LEVELS if platform.machine().lower() in ("x86_64", "amd64") else {"baseline": []}
    built, reason = [], ""
    for level, flags in levels.items():
        try:
            built.append(_compile(compiler, flags, library(level, folder)))
        except OSError as error:
            reason = str(error)
    if not built:
        raise OSError(reason)
    return built


def _compiler() -> list[str]:
    if sys.platform == "win32":
        raise OSError("the native kernel is for Linux and macOS")
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise OSError("no C compiler: install gcc or clang, or name one in CC")


def _compile(compiler: list[str], flags: list[str], target: Path) -> Path:
    """Compile beside the target and rename, so that a running process never sees half a library."""
    handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    try:
        command = [*compiler, *FLAGS, *flags, *map(str, SOURCES), "-o", name, "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{shlex.join(command)} failed: {done.stderr.strip()[:500]}")
        Path(name).chmod(0o755)
        return Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        for path in build():
            sys.stdout.write(f"built {path}\n")
    except OSError as error:
        sys.exit(f"torchleap's native kernel was not built: {error}")
