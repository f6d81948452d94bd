"""MovieLens-1M."""

import io
import lzma
import os
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

import polars as pl

from ..._common.errors import DataError
from ..._common.text import first_line
from ..files import splits
from ..files.options import ReadOptions
from ..files.read import read_sources
from ..files.source import Source
from ..task import Task
from .options import SHARES, WIDTH, Options, with_defaults
from .places import Place

LARGEST = 256 << 20  # bytes of an unpacked file; the largest has 24 MB
PLACE = Place("movielens_1m")
TABLES = {  # the columns of each file
    "ratings": ["user_id", "movie_id", "rating", "timestamp"],
    "users": ["user_id", "gender", "age", "occupation", "zip"],
    "movies": ["movie_id", "title", "genres"],
}
FIELDS = (
    "user_id",
    "movie_id",
    "timestamp",
    "gender",
    "age",
    "occupation",
    "zip",
    "title",
    "genres",
)
DAMAGES = (  # errors on an archive that is damaged, encrypted or packed in an unknown way
    OSError,
    KeyError,
    ValueError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    pl.exceptions.PolarsError,
)


def movielens_1m(
    path: str | os.PathLike[str],
    *,
    width: int = WIDTH,
    shares: Sequence[float] = SHARES,
    split: splits.Split = "random",
    genres: str = "categorical",
    **options: Unpack[Options],
) -> Task:
    """Return MovieLens-1M as a task of 9 fields, whose label is a rating above 3.

    Args:
        path: ml-1m.zip as it is downloaded, or the unpacked folder.
        width: The width of all embeddings.
        shares: The fractions of train, valid and test rows.
        split: How the rows are split.
        genres: "categorical" takes all genres of a movie as one category, as the benchmarks do;
            "list" pools them.
        options: As for `read`.
    """
    if genres not in ("categorical", "list"):
        raise DataError(f"genres must be 'categorical' or 'list', but is {genres!r}.")
    archive = PLACE.find(path, ["ml-1m.zip", "ratings.dat", "ml-1m/ratings.dat"])
    files = [archive]
    if archive.suffix != ".zip":
        files = [archive.parent / f"{name}.dat" for name in TABLES]
    source = Source(str(archive), _joined(archive).lazy(), files=tuple(files))
    columns: dict[str, Any] = {name: {"kind": "categorical"} for name in FIELDS}
    if genres == "list":
        columns["genres"] = {"kind": "list", "separator": "|"}
    chosen = ReadOptions(
        label="rating",
        threshold=3,
        columns=columns,
        only=FIELDS,
        width=width,
        split=split,
        shares=shares,
        **with_defaults(options),
    )
    return read_sources([source], chosen)


def _joined(archive: Path) -> pl.DataFrame:
    """Return the ratings, each with its user and its movie."""
    ratings = _table(archive, "ratings")
    joined = ratings
    for name, key in (("users", "user_id"), ("movies", "movie_id")):
        table = _table(archive, name)
        twice = table[key].is_duplicated().arg_true()
        if len(twice):
            found = table[key][int(twice[0])]
            raise DataError(
                f"{archive}: expected one line per {key} in {name}.dat, but found {found!r} twice."
            )
        joined = joined.join(table, on=key, how="left", maintain_order="left")
    rated = joined.with_columns(pl.col("rating").cast(pl.Float64, strict=False))
    wrong = rated["rating"].is_null().arg_true()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{archive}, ratings.dat, line {row + 1}: expected a rating, "
            f"but found {ratings['rating'][row]!r}."
        )
    return rated


def _table(archive: Path, name: str) -> pl.DataFrame:
    """Return one of the files, whose columns are separated by ::."""
    try:
        text = _content(archive, name).decode("latin-1").replace("::", "\x1f")
        return pl.read_csv(
            io.StringIO(text),
            separator="\x1f",
            has_header=False,
            schema=dict.fromkeys(TABLES[name], pl.String()),
            quote_char=None,
        )
    except DAMAGES as error:
        raise DataError(
            f"{archive} is not a complete MovieLens-1M: "
            f"{name}.dat cannot be read ({first_line(error)})."
        ) from error


def _content(archive: Path, name: str) -> bytes:
    if archive.suffix != ".zip":
        return (archive.parent / f"{name}.dat").read_bytes()
    with zipfile.ZipFile(archive) as packed, packed.open(f"ml-1m/{name}.dat") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(f"it unpacks to more than {LARGEST / 1e6:.0f} MB")
    return content
