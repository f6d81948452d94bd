"""How torch.distributed.checkpoint stores a checkpoint here: its files of tensors, and an index in JSON instead of a pickle.

The index says where each part of each tensor lies, and has a digest of each file. It is read without trust: names of files are
of one form, and no tensor is larger than what is stored of it.
"""

import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .._common.checks import is_whole
from .._common.plain import key_of
from .._common.sealed import digest_of, refuse_packed

INDEX = "index.json"
FORMAT = 1
FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp")
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass
class _Sealed(_StorageInfo):
    """Where a part of a tensor lies, and the digest of its file."""

    sha256: str = ""


class Writer(FileSystemWriter):
    """Write tensors as PyTorch does, and the index in JSON."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's files, and add their digests to what the first rank hears of them."""
        results = super().write_data(plan, planner).wait()
        files = {result.storage_data.relative_path for result in results}
        digests = {name: digest_of(Path(self.path) / name) for name in files}
        future: Future[list[WriteResult]] = Future()
        future.set_result([_with_digest(result, digests) for result in results])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, when all ranks have written."""
        stored = [result for own in results for result in own]
        places = {
            (result.index.fqn, _numbers(result.index.offset)): result.storage_data
            for result in stored
        }
        content = {
            "format": FORMAT,
            "files": {place.relative_path: place.sha256 for place in places.values()},
            "tensors": {
                name: _described(name, kind, places)
                for name, kind in metadata.state_dict_metadata.items()
            },
        }
        with (Path(self.path) / INDEX).open("w", encoding="utf-8") as file:
            json.dump({**content, "key": key_of(content)}, file)
            file.flush()
            os.fsync(file.fileno())


def _with_digest(result: WriteResult, digests: dict[str, str]) -> WriteResult:
    place = result.storage_data
    sealed = _Sealed(
        place.relative_path, place.offset, place.length, sha256=digests[place.relative_path]
    )
    return WriteResult(result.index, result.size_in_bytes, sealed)


def _described(name: str, kind: Any, places: dict[Any, _Sealed]) -> dict[str, Any]:
    """Describe a tensor and where its parts lie."""
    parts = []
    for chunk in kind.chunks:
        offsets = _numbers(chunk.offsets)
        place = places[name, offsets]
        parts.append(
            [offsets, _numbers(chunk.sizes), place.relative_path, place.offset, place.length]
        )
    return {"dtype": str(kind.properties.dtype), "size": _numbers(kind.size), "parts": parts}


def _numbers(size: torch.Size | None) -> tuple[int, ...]:
    return () if size is None else tuple(int(length) for length in size)


class Reader(FileSystemReader):
    """Read a checkpoint by the index in JSON; whatever it says, only tensors are read, and only from beside it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index as PyTorch knows it; raises if it is not one that `Writer` writes."""
        path = Path(self.path) / INDEX
        _expect(not path.is_symlink(), f"{INDEX} in its folder")
        content = json.loads(path.read_text(encoding="utf-8"))
        _expect(
            isinstance(content, dict) and content.get("format") == FORMAT,
            f"{INDEX} of format {FORMAT}",
        )
        key = content.pop("key", None)
        _expect(key_of(content) == key, f"{INDEX} as it was written")
        self.digests: dict[str, str] = content["files"]
        _expect(all(FILE.fullmatch(name) for name in self.digests), "files of tensors")
        tensors: dict[str, Any] = {}
        places: dict[MetadataIndex, _StorageInfo] = {}
        for name, record in content["tensors"].items():
            parts = list(_parts(name, record, self.digests))
            chunks = [
                ChunkStorageMetadata(index.offset or torch.Size(), sizes)
                for index, sizes, _ in parts
            ]
            places.update({index: place for index, _, place in parts})
            properties = TensorProperties(dtype=DTYPES[record["dtype"]])
            tensors[name] = TensorStorageMetadata(properties, torch.Size(record["size"]), chunks)
        planned = {name: (name,) for name in tensors}
        return Metadata(tensors, planner_data=planned, storage_data=places)

    def damages(self, number: int, count: int) -> list[str]:
        """Return the files that are missing or not what was written, of every count-th file."""
        wrong = []
        for name in sorted(self.digests)[number::count]:
            path = Path(self.path) / name
            if path.is_symlink() or not path.is_file() or digest_of(path) != self.digests[name]:
                wrong.append(name)
        return wrong

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        part = super()._slice_file(file, sinfo)
        refuse_packed(part)
        return part


def _parts(
    name: str, record: Any, files: dict[str, str]
) -> Iterator[tuple[MetadataIndex, torch.Size, _StorageInfo]]:
    """Check where the parts of a tensor lie: within it, as many elements as it has, and no more than is stored."""
    size, itemsize = record["size"], DTYPES[record["dtype"]].itemsize
    _expect(_are_counts(size), f"the size of {name!r:.80}")
    total = 0
    for number, (offsets, sizes, file, start, length) in enumerate(record["parts"]):
        _expect(
            _are_counts([*offsets, *sizes, start, length]) and file in files,
            f"a part of {name!r:.80}",
        )
        _expect(
            len(offsets) == len(sizes) == len(size), f"a part of {name!r:.80} with its dimensions"
        )
        inside = all(map(_ends_within, offsets, sizes, size))
        _expect(
            inside and math.prod(sizes) * itemsize <= length, f"a part of {name!r:.80} within it"
        )
        total += math.prod(sizes)
        index = MetadataIndex(name, torch.Size(offsets), number)
        yield index, torch.Size(sizes), _StorageInfo(file, start, length)
    _expect(total == math.prod(size), f"all parts of {name!r:.80}")


def _ends_within(offset: int, part: int, size: int) -> bool:
    return offset + part <= size


def _are_counts(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(
        is_whole(number) and 0 <= number < 1 << 62 for number in numbers
    )


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"expected {what}, but found something else")
