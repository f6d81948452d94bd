"""torchleap doctor: what is installed, and what will run."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

import typer

from .._common.text import table
from .show import as_json, show

PACKAGES = (
    *("torch", "numpy", "polars", "pyarrow", "typer", "rich", "scikit-learn", "xgboost-cpu"),
    *("vl-convert-python", "onnx", "onnxruntime", "tensorboard", "mlflow-skinny", "triton"),
)
FOLDERS = {  # and what holds where they are not set
    "TORCHLEAP_CACHE": "not set: beside the data",
    "TORCHLEAP_DATA": "not set: bench finds no public sets without --folder",
    "TORCHLEAP_MIX": "not set: the fastest that runs here",
}


def doctor(
    context: typer.Context,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show versions, the mixing kernel, threads, devices and data folders.

    Example: torchleap doctor
    """
    found = examine()
    if json:
        as_json(found)
        return
    for title, content in found.items():
        show(title, style="bold")
        show(
            table(["", ""], [[name, str(value)] for name, value in content.items()]).strip("\n")
            + "\n"
        )


def examine() -> dict[str, dict[str, Any]]:
    """Everything that explains why it runs as it does here."""
    import torch

    from ..mix import choose
    from ..native import library

    kernel = library.load()
    return {
        "versions": {
            "torchleap": version("torchleap"),
            "python": platform.python_version(),
            **{p: _version(p) for p in PACKAGES},
        },
        "speed": {
            "mixing": choose(torch.zeros(2, 2)),
            "native kernel": library.obstacle() if kernel is None else kernel.level,
            "threads": torch.get_num_threads(),
            "cores": os.cpu_count(),
            "processor": torch.backends.cpu.get_cpu_capability(),
        },
        "devices": {
            "CUDA": torch.cuda.device_count() if torch.cuda.is_available() else "none",
            "MPS": "yes" if torch.backends.mps.is_available() else "none",
        },
        "folders": {name: os.environ.get(name, usual) for name, usual in FOLDERS.items()},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
