"""read: any file or frame becomes a Task."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from ..._common.errors import DataError, nearest
from ..._common.plain import key_of
from ...objectives import Objective
from ..columns import Column, Kind
from ..manifest import DEFAULT_OBJECTIVE, FORMAT, MANIFEST
from ..task import Task
from . import splits
from .alike import made_alike
from .cache import cache_folder, once, temporary
from .encoders import encoder_for
from .findings import looks_like_data
from .labels import positive_of
from .learn import RULES, Learner
from .open import open_source
from .options import Progress, ReadOptions, Roles, no_progress
from .schema import Given, complete, given_columns, infer
from .source import Change, Source, expected_rows


class NamedChange(NamedTuple):
    """A change of every source before its columns are looked at.

    Attributes:
        name: A name by which the cache knows the change.
        change: The change itself.
    """

    name: str
    change: Change


def read(
    data: Any,
    *,
    label: str,
    objective: str | Objective = DEFAULT_OBJECTIVE,
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
    """Read a file, a folder, a pattern or a frame, split it, and encode it as train rows teach.

    Files are encoded once. The result is kept beside the data, or in `cache=`, or in the folder
    that TORCHLEAP_CACHE names, until the files or these options change.

    Args:
        data: Parquet, CSV or TSV (also .gz and .zst) or Arrow files, or a frame of pandas, polars
            or pyarrow.
        label: The column to predict, 0 or 1.
        objective: What a model is trained for; "binary" is the only one.
        threshold: The label is 1 where its column is above this number, for ratings. None takes
            the column as it is.
        positive: The label is 1 where its column has this value. None takes 1, or the word that
            is obviously positive, such as "yes" beside "no".
        columns: The settings of columns whose inferred kind is wrong, such as
            {"zip": "categorical", "tags": Column(...)}; or a TOML file with them.
        only: The columns to read, besides the label; None reads all.
        drop: Columns to leave out.
        width: The width of the embedding of every column with categories; None follows a rule.
        min_count: The train rows that a category needs to have an id of its own, for every column
            with categories; None is 2.
        split: "random"; "order" of the rows; by "time"; or by "group", so that no group is in two
            parts. None is "time" if `time` is given, else "random".
        shares: The fractions of train, valid and test rows.
        time: The column with the time of each row, which is not an input.
        group: The column with the groups of GAUC, such as users.
        valid: A file or frame with the valid rows, instead of a split; `test` is then needed too.
        test: A file or frame with the test rows.
        separator: The character between the columns of CSV; None finds it in the first line.
        names: The names of the columns of CSV files without a header; None if they have one.
        seed: The seed of a split at random or by group.
        cache: The folder for encoded files; None follows the rule above.
        progress: Called with the step, how many rows or columns are done, and of how many.
    """
    options = ReadOptions(
        label=label,
        objective=objective,
        threshold=threshold,
        positive=positive,
        columns=columns,
        only=only,
        drop=drop,
        width=width,
        min_count=min_count,
        split=split,
        shares=shares,
        time=time,
        group=group,
        seed=seed,
        cache=cache,
        progress=progress,
    )
    if (valid is None) != (test is None):
        raise DataError("Expected files for both valid= and test=, or for neither.")
    others = [part for part in (valid, test) if part is not None]
    sources = [open_source(part, separator=separator, names=names) for part in (data, *others)]
    return read_sources(sources, options)


def read_sources(
    sources: Sequence[Source], options: ReadOptions, change: NamedChange | None = None
) -> Task:
    """Return the task of open sources: one that is to be split, or one for each part.

    Args:
        sources: The rows.
        options: The options of `read`.
        change: A change of every source before its columns are looked at; None changes nothing.
    """
    if change is not None:
        sources = [source.changed(change.change) for source in sources]
    first = sources[0]
    present = _common_names(sources)
    _check_roles(options, present)
    inputs = _inputs(options, present)
    sample = first.sample()
    roles = _roles(options, sources, sample)
    columns = _columns(options, sample, inputs, text=first.text)
    learner = Learner(
        sources=_alike(sources, columns, roles),
        encoders=[encoder_for(one, sample[one.name], text=first.text) for one in columns],
        roles=roles,
        label=options.label_rule(roles),
        progress=options.progress or no_progress,
        expected_rows=expected_rows(sources, sample),
    )
    if not all(source.files for source in sources):
        # a frame has no file that would show whether it is the same one
        held = temporary(learner.write)
        return Task.load(held.path, held)
    folder = cache_folder(first.files[0].resolve().parent, options.cache)
    key = _cache_key(learner, columns, change)
    return Task.load(once(folder, key, learner.write, complete=MANIFEST))


def _cache_key(learner: Learner, columns: Sequence[Column], change: NamedChange | None) -> str:
    """Return a name for everything that the encoded rows depend on."""
    settings = {
        "format": [FORMAT, RULES],
        "files": [source.fingerprint() for source in learner.sources],
        "roles": asdict(learner.roles),
        "columns": [asdict(column) for column in columns],
        "change": change and change.name,
        "reading": [_reading(source) for source in learner.sources],
    }
    if learner.label.objective.name != DEFAULT_OBJECTIVE:
        settings["objective"] = learner.label.objective.name
    return key_of(settings)


def _reading(source: Source) -> list[Any]:
    """Return how a source is read, for the key of the cache."""
    return [Path(source.name).name, source.separator, source.lines_before, source.names()]


def _common_names(sources: Sequence[Source]) -> list[str]:
    """Return the names of the columns, which all sources must have."""
    first = sources[0].names()
    if "" in first:
        raise DataError(
            f"{sources[0].name}: column {first.index('') + 1} of {len(first)} has no name. "
            "Name it in the first line, or name all columns: names=[...]."
        )
    for source in sources[1:]:
        found = source.names()
        lacking = [name for name in first if name not in found]
        extra = [name for name in found if name not in first]
        problems = []
        if lacking:
            problems.append(f"it lacks {', '.join(lacking[:5])}")
        if extra:
            problems.append(f"it has {', '.join(extra[:5])}")
        if problems:
            raise DataError(
                f"{source.name} has other columns than {sources[0].name}: {' and '.join(problems)}."
            )
    return first


def _check_roles(options: ReadOptions, present: Sequence[str]) -> None:
    """Refuse a label, group or time without a column."""
    columns = {"label": options.label, "group": options.group, "time": options.time}
    for role, name in columns.items():
        if name in present or (name is None and role != "label"):
            continue
        hint = ""
        if looks_like_data(present):
            hint = (
                " The first line looks like data, not like names; "
                "if it is, name the columns: names=[...]."
            )
        raise DataError(
            f"There is no column {name!r} for {role}=. {nearest(str(name), present)}{hint}"
        )


def _roles(options: ReadOptions, sources: Sequence[Source], sample: pl.DataFrame) -> Roles:
    """Return the roles of the columns, with the positive value of the label if it is obvious."""
    positive: Any = options.positive
    if options.threshold is None:
        found = positive_of(sources, options.label, sample[options.label], options.positive)
        positive = found or options.positive
    return options.roles(positive)


def _inputs(options: ReadOptions, present: Sequence[str]) -> list[str]:
    """Return the names of the input columns, in the order of the file."""
    dropped = set(options.drop)
    wanted = set(present) if options.only is None else set(options.only)
    for name in (*wanted, *dropped):
        if name not in present:
            raise DataError(f"There is no column {name!r}. {nearest(str(name), present)}")
    left = wanted - dropped - {options.label, options.time}
    if not left:
        raise DataError("No input column is left beside the label.")
    return [name for name in present if name in left]


def _columns(
    options: ReadOptions, sample: pl.DataFrame, inputs: Sequence[str], *, text: bool
) -> list[Column]:
    """Return the settings of the input columns: given, or else inferred from the first rows."""
    given = given_columns(options.columns)
    for name in given:
        if name not in sample.columns:
            raise DataError(
                f"There is no column {name!r} for columns=. {nearest(str(name), sample.columns)}"
            )
    found = []
    for name, column in infer(sample, inputs, text=text).items():
        if options.min_count is not None:
            column = replace(column, min_count=options.min_count)
        if name in given:
            column = complete(name, given[name], column)
        has_table = column.kind in ("categorical", "list")
        if has_table and column.width is None and options.width is not None:
            column = replace(column, width=options.width)
        found.append(column)
    return found


def _alike(sources: Sequence[Source], columns: Sequence[Column], roles: Roles) -> list[Source]:
    """Return the sources with the types of the first, which has the train rows."""
    kinds: dict[str, Kind] = {column.name: column.kind for column in columns}
    kinds[roles.label] = "numeric"
    if roles.group is not None:
        kinds[roles.group] = "categorical"
    types = sources[0].schema()
    return [sources[0], *(made_alike(source, types, kinds) for source in sources[1:])]
