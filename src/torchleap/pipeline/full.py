"""The full model of a result, with all that it takes to compare it on new labelled rows.

The folder `full/` of a result holds the model of all fields, saved as the smaller one is, and
beside it the encoding of all columns, how the label is read, and a sketch of the rows that both
models have seen.
"""

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import export
from .._common.checks import is_number
from .._common.errors import DataError, TorchleapError
from .._common.plain import parse_json, plain, write_json
from .._common.text import first_line
from ..data.files.encoders.label import LabelRule
from ..data.files.encoding import MANIFEST as ENCODED
from ..data.files.encoding import Encoding, save_encoding
from ..data.sketch import Share, Sketch, encoded_hashes
from ..data.task import Task
from ..export.files import save_silently
from ..objectives import Objective
from ..plugin import attach
from ..selection import Selection
from .serve import ENCODING, FULL

SETTINGS = "check.json"
ROWS = "rows.sketch"
FORMAT = 1
EXAMPLE_ROWS = 64
AGAIN = "Select again."


@dataclass(frozen=True)
class Compared:
    """How a result compares its models.

    Attributes:
        label: The name of the column of the label.
        threshold: The label is 1 where the column is above this.
        positive: The label is 1 where the column has this value.
        group: The column of the groups.
        margin: The margin that was certified at; None if it is not known.
        relative: Whether it is a fraction of the metric.
        typical_training: The standard deviation of the change between trainings, if known.
        saved: The costs of the dropped fields, and of all fields; None if none were given.
    """

    label: str
    threshold: float | None = None
    positive: str | float | bool | None = None
    group: str | None = None
    margin: float | None = None
    relative: bool = False
    typical_training: float | None = None
    saved: tuple[float, float] | None = None

    @classmethod
    def of(
        cls, task: Task, certificate: Mapping[str, Any], saved: tuple[float, float] | None
    ) -> "Compared":
        """Return how the models of a task are compared.

        Args:
            task: The task.
            certificate: The certificate of both as plain JSON; empty if there is none.
            saved: The costs of the dropped fields, and of all fields.
        """
        fraction = certificate.get("relative")
        return cls(
            label=task.roles["label"],
            threshold=task.roles.get("threshold"),
            positive=task.roles.get("positive"),
            group=task.roles.get("group"),
            margin=certificate.get("margin") if fraction is None else fraction,
            relative=fraction is not None,
            typical_training=certificate.get("typical_training"),
            saved=saved,
        )

    def rule(self, objective: Objective) -> LabelRule:
        """Return how the label is made of its column."""
        return LabelRule(self.label, objective, self.threshold, self.positive)


@dataclass(frozen=True)
class Full:
    """The full model of a result.

    Attributes:
        model: The model of all fields.
        encoding: The encoding of all columns.
        compared: How both models are compared.
        seen: The sketch of the rows that both were trained on and chosen by.
        natural: How many of the task's own test rows are among these.
    """

    model: nn.Module = field(repr=False)
    encoding: Encoding = field(repr=False)
    compared: Compared
    seen: Sketch = field(repr=False)
    natural: Share


def save_full(model: nn.Module, task: Task, compared: Compared, folder: Path) -> str:
    """Write the full model of a result to a folder; return a digest that binds its parts.

    Args:
        model: The model of all fields, as `without_gates` returns it.
        task: The task that it was trained on.
        compared: How both models are compared.
        folder: The folder, which is made.
    """
    save_silently(model, folder)
    save_encoding(task, folder / ENCODING)
    seen = Sketch.of(encoded_hashes(task.train, task.valid))
    natural = seen.share(encoded_hashes(task.test))
    content = {
        "format": FORMAT,
        "compared": plain(asdict(compared), "compared"),
        "seen": seen.save(folder / ROWS),
        "natural": [natural.known, natural.rows],
    }
    write_json(folder / SETTINGS, content, indent=1)
    return digest_of(folder)


def digest_of(folder: Path) -> str:
    """Return a digest of the parts of a full model, whose manifests have digests of the rest."""
    found = hashlib.sha256()
    for path in (folder / export.MANIFEST, folder / ENCODING / ENCODED, folder / SETTINGS):
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def without_gates(model: nn.Module, task: Task) -> nn.Module:
    """Return a plain model as one that can be saved: it is pruned, and keeps all fields.

    It computes the same, bit for bit; the model itself is left as it is.

    Args:
        model: A model as `torchleap.models.build` returns it.
        task: The task that it was trained on.
    """
    fields = task.fields
    plugin = attach(copy.deepcopy(model), fields, at="net", init=100.0, seed=0)
    example = next(iter(task.valid.batches(min(EXAMPLE_ROWS, len(task.valid))))).inputs
    with torch.no_grad(), plugin.held_out():
        plugin.model(*example)  # gates have to know means, which open ones do not use
    everything = Selection(fields, (1.0,) * len(fields), (True,) * len(fields), method="none")
    return plugin.prune(everything, example=example, time_limit=None).eval()


def load_full(folder: Path, digest: Any) -> Full:
    """Return the full model of a result; no code of it is run.

    Args:
        folder: The folder `full/` of the result.
        digest: What `save_full` returned, as the layout of the result has it; None if the result
            was saved without its full model.
    """
    result = folder.parent
    if digest is None:
        raise DataError(
            f"Expected the full model in {folder}, but the result was saved without it, by "
            "--no-full. Select again without --no-full."
        )
    path = folder / SETTINGS
    try:
        content = parse_json(_text(path))
        found = digest_of(folder)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{result} has no complete full model: {path} cannot be read "
            f"({first_line(error):.200}). {AGAIN}"
        ) from error
    if found != digest:
        raise DataError(
            f"{result} mixes several results: its {FULL} was not written together with the other "
            f"parts. {AGAIN}"
        )
    compared, natural, described = _parsed(content, path)
    seen = Sketch.load(folder / ROWS, described)
    encoding = Encoding.load(folder / ENCODING)
    return Full(export.load(folder), encoding, compared, seen, natural)


def _text(path: Path) -> str:
    if not path.is_file():  # reading a pipe would wait
        raise OSError(2, "it is not a file")
    return path.read_text(encoding="utf-8")


def _parsed(content: Any, path: Path) -> tuple[Compared, Share, Any]:
    """Return the checked content of the settings: a file may contain anything."""
    try:
        if content["format"] != FORMAT:
            raise ValueError(f"expected format {FORMAT}, but found {content['format']!r:.40}")
        known, rows = content["natural"]
        if type(known) is not int or type(rows) is not int or not 0 <= known <= rows:
            raise ValueError("its number of rows that are equal by chance is not possible")
        compared = Compared(**content["compared"])
        _check(compared)
        return compared, Share(known, rows), content["seen"]
    except (KeyError, TypeError, ValueError, AttributeError, TorchleapError) as error:
        raise DataError(
            f"{path} is damaged or of another version ({first_line(error):.200}). {AGAIN}"
        ) from error


def _check(compared: Compared) -> None:
    """Raise a ValueError if settings have values that none can have."""
    if not isinstance(compared.label, str) or not isinstance(compared.group, str | None):
        raise ValueError("the label and the group must be names")
    if compared.margin is not None and not (is_number(compared.margin) and compared.margin > 0):
        raise ValueError(f"the margin {compared.margin!r:.40} is not above 0")
    if not isinstance(compared.relative, bool):
        raise ValueError("relative must be true or false")
    if not isinstance(compared.positive, str | int | float | bool | None):
        raise ValueError("the positive value must be text or a number")
    numbers = [compared.threshold, compared.typical_training, *(compared.saved or ())]
    if not all(one is None or is_number(one) for one in numbers):
        raise ValueError("expected numbers as threshold, deviation and costs")
    if compared.saved is not None and len(compared.saved) != 2:
        raise ValueError("expected two costs")
