"""How torch.distributed.checkpoint stores a checkpoint: files of tensors, and an index in JSON.

The index, which replaces PyTorch's pickle, has the place of each part of each tensor and a digest
of each file. It is not trusted: names of files have one form, and no tensor is larger than what is
stored of it.
"""

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
from .._common.plain import as_json, fits_key, parse_json, with_key
from .._common.sealed import digest_of, refuse_packed

INDEX = "index.json"
FORMAT = 1
FILE = re.compile(r"__\d{1,9}_\d{1,9}\.distcp")
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


@dataclass
class _Sealed(_StorageInfo):
    """The place of a part of a tensor, and the digest of its file."""

    sha256: str = ""


class Writer(FileSystemWriter):
    """Write tensors as PyTorch does, and the index in JSON."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's files, and return their places with the digests of the files."""
        results = super().write_data(plan, planner).wait()
        files = {result.storage_data.relative_path for result in results}
        digests = {name: digest_of(Path(self.path) / name) for name in files}
        future: Future[list[WriteResult]] = Future()
        future.set_result([_with_digest(result, digests) for result in results])
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index, when all ranks have written."""
        places = {}
        for result in (result for own in results for result in own):
            offset = _numbers(result.index.offset)
            places[result.index.fqn, offset] = result.storage_data
        tensors = {
            name: _described(name, kind, places)
            for name, kind in metadata.state_dict_metadata.items()
        }
        files = {place.relative_path: place.sha256 for place in places.values()}
        content = {"format": FORMAT, "files": files, "tensors": tensors}
        with (Path(self.path) / INDEX).open("w", encoding="utf-8") as file:
            file.write(as_json(with_key(content)))
            file.flush()
            os.fsync(file.fileno())


def _with_digest(result: WriteResult, digests: dict[str, str]) -> WriteResult:
    place = result.storage_data
    name = place.relative_path
    sealed = _Sealed(name, place.offset, place.length, sha256=digests[name])
    return WriteResult(result.index, result.size_in_bytes, sealed)


def _described(name: str, kind: Any, places: dict[Any, _Sealed]) -> dict[str, Any]:
    """Return the dtype and size of a tensor, and the places of its parts."""
    parts = []
    for chunk in kind.chunks:
        offsets = _numbers(chunk.offsets)
        place = places[name, offsets]
        in_file = [place.relative_path, place.offset, place.length]
        parts.append([offsets, _numbers(chunk.sizes), *in_file])
    return {"dtype": str(kind.properties.dtype), "size": _numbers(kind.size), "parts": parts}


def _numbers(size: torch.Size | None) -> tuple[int, ...]:
    if size is None:
        return ()
    return tuple(int(length) for length in size)


class Reader(FileSystemReader):
    """Read a checkpoint by the index in JSON: only tensors, and only from files beside it."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the index in PyTorch's form; one that `Writer` did not write is a ValueError."""
        content = self._read_index()
        self.digests: dict[str, str] = content["files"]
        _expect(all(FILE.fullmatch(name) for name in self.digests), "files of tensors")
        tensors: dict[str, Any] = {}
        places: dict[MetadataIndex, _StorageInfo] = {}
        for name, record in content["tensors"].items():
            chunks = []
            for index, sizes, place in _parts(name, record, self.digests):
                chunks.append(ChunkStorageMetadata(index.offset or torch.Size(), sizes))
                places[index] = place
            properties = TensorProperties(dtype=DTYPES[record["dtype"]])
            tensors[name] = TensorStorageMetadata(properties, torch.Size(record["size"]), chunks)
        planned = {name: (name,) for name in tensors}
        return Metadata(tensors, planner_data=planned, storage_data=places)

    def _read_index(self) -> dict[str, Any]:
        path = Path(self.path) / INDEX
        _expect(not path.is_symlink(), f"{INDEX} in its folder")
        content = parse_json(path.read_text(encoding="utf-8"))
        fits = isinstance(content, dict) and content.get("format") == FORMAT
        _expect(fits, f"{INDEX} of format {FORMAT}")
        _expect(fits_key(content), f"{INDEX} as it was written")
        return dict(content)

    def damages(self, number: int, count: int) -> list[str]:
        """Return the files that are missing or damaged, of every count-th file.

        Args:
            number: The first file to check, from 0.
            count: The distance to the next one.
        """
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
    """Yield the parts of a tensor with their sizes and places.

    They must lie within the tensor, have all its elements, and be no larger than what is stored.
    """
    size = record["size"]
    itemsize = DTYPES[record["dtype"]].itemsize
    _expect(_are_counts(size), f"the size of {name!r:.80}")
    part = f"a part of {name!r:.80}"
    total = 0
    for number, (offsets, sizes, file, start, length) in enumerate(record["parts"]):
        _expect(_are_counts([*offsets, *sizes, start, length]) and file in files, part)
        _expect(len(offsets) == len(sizes) == len(size), f"{part} with its dimensions")
        inside = all(map(_ends_within, offsets, sizes, size))
        _expect(inside and math.prod(sizes) * itemsize <= length, f"{part} within it")
        total += math.prod(sizes)
        index = MetadataIndex(name, torch.Size(offsets), number)
        yield index, torch.Size(sizes), _StorageInfo(file, start, length)
    _expect(total == math.prod(size), f"all parts of {name!r:.80}")


def _ends_within(offset: int, part: int, size: int) -> bool:
    return offset + part <= size


def _are_counts(numbers: Any) -> bool:
    """Return whether a value is a list of numbers of elements or bytes."""
    if not isinstance(numbers, list):
        return False
    return all(is_whole(number) and 0 <= number < 1 << 62 for number in numbers)


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"expected {what}, but found something else")
