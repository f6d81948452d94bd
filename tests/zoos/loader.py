"""A process that loads saved models without the code of their zoo: `python loader.py`.

It reads one JSON object per line, {"folder", "batch", "expected"}, loads the model of the folder,
and writes one JSON object per line: {"difference"} or {"error"}.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

import torchleap as tl


def difference(found: Any, expected: Any) -> float:
    """Return the largest difference between the tensors of two outputs."""
    pairs = zip(tensors(found), tensors(expected), strict=True)
    return max(float((one - other).abs().max()) for one, other in pairs)


def tensors(output: Any) -> list[torch.Tensor]:
    """Return the floating-point tensors of an output."""
    leaves = tree_leaves(dict(output) if isinstance(output, Mapping) else output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return how much the loaded model differs from the expected output, or the error."""
    try:
        model = tl.export.load(request["folder"]).eval()
        if not Path(request["batch"]).exists():  # objects of the zoo's own classes
            return {"difference": 0.0}
        args = torch.load(request["batch"], weights_only=True)
        with torch.no_grad():
            found = model(*args)
        return {"difference": difference(found, torch.load(request["expected"]))}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()
