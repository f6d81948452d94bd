"""Compile the C sources beside this file: `python -m torchleap.native.build`.

The package's own build runs the same code. It uses only the standard library, because it runs
before torch is installed. One shared library is built per level of vector instructions, and
`library.py` loads the best one that the processor supports.
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
FLAGS = [
    "-std=gnu11",
    "-O3",
    "-shared",
    "-fPIC",
    "-pthread",
    "-fopenmp-simd",
    # Vectors need to reorder sums; NaN, infinity and everything else keep their meaning.
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-fno-signed-zeros",
]
AVX2 = ["-mavx2", "-mfma", "-mbmi2"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl", "-mprefer-vector-width=512"]
LEVELS = {"avx512": AVX512, "avx2": AVX2, "baseline": []}  # best first


def library_path(level: str, folder: Path = HERE) -> Path:
    """Return the path of the shared library for one level of vector instructions."""
    return folder / f"_kernel_{level}.so"


def build(folder: Path = HERE) -> list[Path]:
    """Compile the sources for each level that this kind of processor may support.

    Args:
        folder: The folder to write the libraries to; by default it is that of the sources.

    Returns:
        The paths of the libraries that could be compiled, at least one.

    Raises:
        OSError: No library could be compiled; the message contains the reason.
    """
    compiler = _find_compiler()
    levels = LEVELS
    if platform.machine().lower() not in ("x86_64", "amd64"):
        levels = {"baseline": []}
    built = []
    reason = ""
    for level, flags in levels.items():
        try:
            built.append(_compile(compiler, flags, library_path(level, folder)))
        except OSError as error:
            reason = str(error)
    if not built:
        raise OSError(reason)
    return built


def _find_compiler() -> list[str]:
    """Return the command of a C compiler: that of the variable CC, or one on the path."""
    if sys.platform == "win32":
        raise OSError("the native kernel is for Linux and macOS")
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise OSError("no C compiler: install gcc or clang, or name one in CC")


def _compile(compiler: list[str], flags: list[str], target: Path) -> Path:
    """Compile to a temporary file and rename it, so that no process loads half a library."""
    handle, name = tempfile.mkstemp(suffix=".so", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    command = [*compiler, *FLAGS, *flags, *map(str, SOURCES), "-o", name, "-lm"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(f"{shlex.join(command)} failed: {done.stderr.strip()[:500]}")
        temporary.chmod(0o755)
        return temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        for path in build():
            sys.stdout.write(f"built {path}\n")
    except OSError as error:
        sys.exit(f"torchleap's native kernel was not built: {error}")
