"""torchleap doctor: the installed versions, and what will run."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import typer

from .._common.text import table
from .options import Json
from .show import show, show_json

PACKAGES = (
    "torch",
    "numpy",
    "polars",
    "pyarrow",
    "typer",
    "rich",
    "scikit-learn",
    "xgboost-cpu",
    "vl-convert-python",
    "onnx",
    "onnxruntime",
    "tensorboard",
    "mlflow-skinny",
    "triton",
)
VARIABLES = {  # of the environment, and what holds where they are not set
    "TORCHLEAP_CACHE": "not set: beside the data",
    "TORCHLEAP_DATA": "not set: bench finds no public sets without --folder",
    "TORCHLEAP_MIX": "not set: the fastest that runs here",
}


def doctor(context: typer.Context, json: Json = False) -> None:
    """Show versions, the mixing kernel, threads, devices and data folders.

    Example: torchleap doctor
    """
    found = examine()
    if json:
        show_json(found)
        return
    for title, content in found.items():
        rows = [[name, str(value)] for name, value in content.items()]
        lines = table(["", ""], rows).strip("\n")
        show(title, style="bold")
        show(f"{lines}\n")


def examine() -> dict[str, dict[str, Any]]:
    """Return everything that explains how torchleap runs here."""
    import torch

    from ..mix import choose
    from ..native import library

    kernel = library.load()
    versions = {"torchleap": version("torchleap"), "python": platform.python_version()}
    versions |= {package: _version(package) for package in PACKAGES}
    speed = {
        "mixing": choose(torch.zeros(2, 2)),
        "native kernel": library.obstacle() if kernel is None else kernel.level,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    devices = {
        "CUDA": torch.cuda.device_count() if torch.cuda.is_available() else "none",
        "MPS": "yes" if torch.backends.mps.is_available() else "none",
    }
    folders = {name: os.environ.get(name, default) for name, default in VARIABLES.items()}
    return {"versions": versions, "speed": speed, "devices": devices, "folders": folders}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
