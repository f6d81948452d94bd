"""read: any file or frame becomes a Task."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import polars as pl

from ..._common.checks import is_number, is_seed
from ..._common.errors import DataError, nearest
from ..._common.plain import key_of
from ..task import Task
from . import splits
from .cache import cache_folder, once, temporary
from .encode import FORMAT, MANIFEST, RULES, Progress, Roles, encode
from .encoders import encoder_for, is_text
from .findings import looks_like_data
from .labels import positive_of
from .schema import Column, Given, Kind, complete, given_columns, infer, plain
from .sources import Source, fingerprint, open_source

SAMPLE_ROWS = 20_000  # from which kinds are inferred
Change = Callable[[pl.LazyFrame], pl.LazyFrame]


def read(
    data: Any,
    *,
    label: str,
    threshold: float | None = None,
    positive: str | float | None = None,
    columns: Given | str | Path | None = None,
    only: Iterable[str] | None = None,
    drop: Iterable[str] = (),
    width: int | None = None,
    min_count: int | None = None,
    split: splits.Split | None = None,
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    time: str | None = None,
    group: str | None = None,
    valid: Any = None,
    test: Any = None,
    separator: str | None = None,
    names: Sequence[str] | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Task:
    """Read a file, a folder, a pattern or a frame, split it, and encode it by what train rows teach.

    Files are encoded once and kept beside the data (or in `cache=`, or in the folder that TORCHLEAP_CACHE names), until they or
    these settings change.

    Args:
        data: Parquet, CSV or TSV (also .gz and .zst), Arrow; or a frame of pandas, polars or pyarrow.
        label: The column to predict, 0 or 1.
        threshold: The label is 1 where the column is above this, for ratings.
        positive: The label is 1 where the column has this value.
        columns: What to make of columns where the inferred kind is wrong, {"zip": "categorical", "tags": Column(...)}; or a
            TOML file.
        only: The columns to read, besides the label; all if left out.
        drop: Columns to leave out.
        width: Of the embedding of every column with categories; by rule if left out.
        min_count: Of every column with categories, see `Column`.
        split: "random"; "order" of the rows; by "time"; by "group", so that no group is in two parts. "time" if `time` is given.
        shares: Of the train, valid and test rows.
        time: The column that says when a row happened; it is no input.
        group: The column of the groups of GAUC, such as users.
        valid, test: Files of their own instead of a split.
        separator, names: Of CSV: what separates columns, and what they are called where there is no header.
        progress: Called with what is done, how many rows or columns are, and of how many.
    """
    parts = [data, *(part for part in (valid, test) if part is not None)]
    sources = [open_source(part, separator=separator, names=names) for part in parts]
    if (valid is not None and test is None) or (valid is None and test is not None):
        raise DataError("Expected files for both valid= and test=, or for neither.")
    return read_sources(
        sources, None, label=label, threshold=threshold, positive=positive, columns=columns, only=only, drop=drop, width=width,
        min_count=min_count, split=split, shares=shares, time=time, group=group, seed=seed, cache=cache, progress=progress,
    )  # fmt: skip


def read_sources(
    sources: Sequence[Source],
    change: tuple[str, Change] | None,
    *,
    label: str,
    threshold: float | None = None,
    positive: str | float | None = None,
    columns: Given | str | Path | None = None,
    only: Iterable[str] | None = None,
    drop: Iterable[str] = (),
    width: int | None = None,
    min_count: int | None = None,
    split: splits.Split | None = None,
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    time: str | None = None,
    group: str | None = None,
    seed: int = 0,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Task:
    """`read` for sources that are open.

    Args:
        change: What to do with every source before its columns are looked at, with a name that the cache knows it by.
    """
    if change is not None:
        sources = [source.changed(change[1]) for source in sources]
    present = _common_names(sources)
    roles = _roles(present, label, threshold, positive, group, time, split, shares, seed)
    inputs = _inputs(present, only, drop, {label, *((time,) if time else ())})
    sample = sources[0].head(SAMPLE_ROWS)
    if not len(sample):
        raise DataError(f"{sources[0].name} has columns but no rows.")
    if threshold is None:
        found = positive_of(sources, label, sample[label], positive)
        roles = replace(roles, positive=found or roles.positive)
    wanted = _columns(sources[0], sample, inputs, given_columns(columns), width, min_count)
    encoders = [encoder_for(column, sample[column.name], text=sources[0].text) for column in wanted]
    kinds: dict[str, Kind] = {column.name: column.kind for column in wanted} | {label: "numeric"}
    kinds |= {group: "categorical"} if group is not None else {}
    sources = [sources[0], *(_made_alike(source, sources[0], kinds) for source in sources[1:])]
    files = [file for source in sources for file in source.files]
    expected = _expected_rows(files, sample, sources[0])

    def make(folder: Path) -> None:
        encode(sources, encoders, roles, folder, progress or (lambda *_: None), expected)

    if not all(
        source.files for source in sources
    ):  # a frame has no file that would tell whether it is the same one
        folder_of_frame = temporary(make)
        return Task.load(folder_of_frame.path, folder_of_frame)
    settings = {
        "format": [FORMAT, RULES],
        "files": [fingerprint(source) for source in sources],
        "roles": asdict(roles),
        "columns": [asdict(column) for column in wanted],
        "change": change and change[0],
        "reading": [
            [Path(source.name).name, source.separator, source.lines_before, source.names()]
            for source in sources
        ],
    }
    if cache is not None and not isinstance(cache, str | os.PathLike):
        raise DataError(f"cache= takes the path of a folder, but found {cache!r}.")
    folder = cache_folder(files[0].resolve().parent, cache)
    return Task.load(once(folder, key_of(settings), make, complete=MANIFEST))


def _common_names(sources: Sequence[Source]) -> list[str]:
    first, *others = [source.names() for source in sources]
    if "" in first:
        place = f"column {first.index('') + 1} of {len(first)}"
        raise DataError(
            f"{sources[0].name}: {place} has no name. Name it in the first line, or name all columns: names=[...]."
        )
    for source, found in zip(sources[1:], others, strict=True):
        lacking, extra = [n for n in first if n not in found], [n for n in found if n not in first]
        if lacking or extra:
            problems = [f"it lacks {', '.join(lacking[:5])}"] * bool(lacking) + [
                f"it has {', '.join(extra[:5])}"
            ] * bool(extra)
            raise DataError(
                f"{source.name} has other columns than {sources[0].name}: {' and '.join(problems)}."
            )
    return first


def _roles(
    present: Sequence[str],
    label: str,
    threshold: float | None,
    positive: str | float | None,
    group: str | None,
    time: str | None,
    split: splits.Split | None,
    shares: Sequence[float],
    seed: int,
) -> Roles:
    for argument, name in (("label", label), ("group", group), ("time", time)):
        if (name is not None or argument == "label") and name not in present:
            raise DataError(
                f"There is no column {name!r} for {argument}=. {nearest(str(name), present)}{_hint(present)}"
            )
    split = split or ("time" if time else "random")
    if split not in ("random", "order", "time", "group"):
        raise DataError(f"split must be 'random', 'order', 'time' or 'group', but is {split!r}.")
    if split in ("time", "group") and (time if split == "time" else group) is None:
        raise DataError(f"split={split!r} needs the name of a column: {split}=...")
    if threshold is not None and positive is not None:
        raise DataError("Expected threshold= or positive=, but found both.")
    if threshold is not None and not is_number(threshold):
        raise DataError(f"threshold must be a number, but is {threshold!r}.")
    if positive is not None and not isinstance(plain(positive), str | int | float):
        raise DataError(f"positive must be a value of the label's column, but is {positive!r}.")
    if not is_seed(seed):
        raise DataError(f"seed must be a whole number from 0 to 4,294,967,295, but is {seed!r}.")
    splits.check_shares(shares)
    first, second, third = map(float, shares)
    return Roles(
        label,
        plain(threshold),
        plain(positive),
        group,
        time,
        split,
        (first, second, third),
        int(seed),
    )


def _hint(present: Sequence[str]) -> str:
    """Say what may be wrong if a name is not there."""
    if not looks_like_data(present):
        return ""
    return (
        " The first line looks like data, not like names; if it is, name the columns: names=[...]."
    )


def _inputs(
    present: Sequence[str], only: Iterable[str] | None, drop: Iterable[str], taken: set[str]
) -> list[str]:
    if (
        isinstance(only, str)
        or isinstance(drop, str)
        or not isinstance(drop, Iterable)
        or not isinstance(only, Iterable | None)
    ):
        raise DataError(
            f"only= and drop= take several names: a list, not {drop if only is None else only!r}."
        )
    wanted = [name for name in present if name not in taken] if only is None else list(only)
    dropped = set(drop)
    for name in (*wanted, *dropped):
        if name not in present:
            raise DataError(f"There is no column {name!r}. {nearest(str(name), present)}")
    left = [name for name in present if name in set(wanted) - dropped - taken]
    if not left:
        raise DataError("No input column is left beside the label.")
    return left


def _columns(
    source: Source,
    sample: pl.DataFrame,
    inputs: Sequence[str],
    given: dict[str, Any],
    width: int | None,
    min_count: int | None,
) -> list[Column]:
    for name in given:
        if name not in sample.columns:
            raise DataError(
                f"There is no column {name!r} for columns=. {nearest(str(name), sample.columns)}"
            )
    inferred = infer(sample, inputs, text=source.text)
    Column(
        "of any name", "categorical", width, min_count=1 if min_count is None else min_count
    )  # refuses what no column can be
    if min_count is not None:
        inferred = {name: replace(column, min_count=min_count) for name, column in inferred.items()}
    found = [
        complete(name, given[name], column) if name in given else column
        for name, column in inferred.items()
    ]
    categories = ("categorical", "list")
    return [
        replace(c, width=width)
        if width is not None and c.width is None and c.kind in categories
        else c
        for c in found
    ]


def _made_alike(source: Source, first: Source, kinds: dict[str, Kind]) -> Source:
    """A valid or test source whose columns can be compared with those of train rows, whatever types its file has."""
    theirs, ours = source.schema(), first.schema()
    changes = [
        _cast(name, kind, theirs[name], ours[name], source)
        for name, kind in kinds.items()
        if theirs[name] != ours[name]
    ]
    return source.changed(lambda frame: frame.with_columns(changes)) if changes else source


def _cast(name: str, kind: Kind, theirs: pl.DataType, ours: pl.DataType, source: Source) -> pl.Expr:
    """A column of one type made like one of another."""
    column, found = pl.col(name), None
    nested = isinstance(theirs, pl.List | pl.Array), isinstance(ours, pl.List | pl.Array)
    if pl.Null in (theirs, ours) or (all(nested) and kind == "vector"):
        found = column
    elif isinstance(theirs, pl.List | pl.Array) and isinstance(ours, pl.List | pl.Array):
        element = _alike(
            pl.element(),
            "categorical",
            pl.Series(dtype=theirs.inner).dtype,
            pl.Series(dtype=ours.inner).dtype,
        )
        found = None if element is None else column.cast(pl.List(theirs.inner)).list.eval(element)
    elif not any(nested):
        found = _alike(column, kind, theirs, ours)
    if found is None:
        raise DataError(
            f"{source.name}: column {name!r} holds {theirs}, but {ours} in the train rows. Give both the same type."
        )
    return found.alias(name)


def _alike(value: pl.Expr, kind: Kind, theirs: pl.DataType, ours: pl.DataType) -> pl.Expr | None:
    """A value of one type as one of another that it can be compared with; None if there is no safe way."""
    pair = _sort(ours), _sort(theirs)
    if theirs == ours or (kind == "numeric" and "moment" not in pair and "other" not in pair):
        return value  # numbers are parsed from either, and text that is none is told with its row
    if pair[0] == pair[1] == "moment" and type(theirs) is type(ours):
        return value.cast(ours)
    if set(pair) <= {"text", "whole"}:
        return value.cast(pl.String)
    if pair == ("whole", "fraction"):  # as pandas makes of whole numbers of which some are missing
        number = value.cast(pl.Float64)
        whole = number.cast(pl.Int64, strict=False)
        return (
            pl.when(whole == number)
            .then(whole.cast(pl.String))
            .otherwise(number.fill_nan(None).cast(pl.String))
        )
    return value.cast(ours) if pair in (("fraction", "whole"), ("fraction", "fraction")) else None


def _sort(dtype: pl.DataType) -> str:
    if is_text(dtype):
        return "text"
    if dtype.is_numeric():
        return "whole" if dtype.is_integer() else "fraction"
    return "moment" if dtype.is_temporal() else "truth" if dtype == pl.Boolean else "other"


def _expected_rows(files: Sequence[Path], sample: pl.DataFrame, source: Source) -> int:
    """About how many rows the files hold, to tell how far reading is."""
    if not source.text:
        return source.count()
    texts = [sample[name] for name in sample.columns if sample[name].dtype == pl.String]
    row = (
        sum(int(text.str.len_bytes().sum() or 0) for text in texts) / len(sample) + sample.width
    )  # bytes, with separators
    packed = 4 if any(file.suffix in (".gz", ".zst") for file in files) else 1
    return int(packed * sum(file.stat().st_size for file in files) / row)
