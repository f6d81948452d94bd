"""The public data sets in the formats in which people have them, with the conventions of the published benchmarks.

All fields are categories with embeddings of one width, 8 unless told otherwise, as in the benchmarks; `read` gives the same files
native widths. Vocabularies come from train rows alone, where the benchmarks take them from all rows.
"""

import io
import lzma
import os
import shutil
import struct
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import Any, TypedDict, Unpack

import polars as pl

from ..._common.errors import DataError, nearest
from ..._common.files import make_folder, replace_file
from ..._common.text import first_line
from ..files import splits
from ..files.encode import Progress
from ..files.read import read_sources
from ..files.sources import Source, open_source
from ..task import Task

WIDTH = 8
CRITEO = (
    "label",
    *(f"I{number}" for number in range(1, 14)),
    *(f"C{number}" for number in range(1, 27)),
)
ALICCP = (
    *(
        "101",
        "121",
        "122",
        "124",
        "125",
        "126",
        "127",
        "128",
        "129",
        "205",
        "206",
        "207",
        "210",
        "216",
    ),
    *("508", "509", "702", "853", "301", "109_14", "110_14", "127_14", "150_14"),
)
LARGEST = 256 << 20  # bytes of a file of MovieLens; the largest has 24 MB
MOVIELENS = (
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
CENSUS = (
    *(
        "age",
        "class_of_worker",
        "industry_code",
        "occupation_code",
        "education",
        "wage_per_hour",
        "enrolled_in_education",
    ),
    *(
        "marital_status",
        "major_industry",
        "major_occupation",
        "race",
        "hispanic_origin",
        "sex",
        "union_member",
    ),
    *(
        "reason_for_unemployment",
        "employment",
        "capital_gains",
        "capital_losses",
        "dividends",
        "tax_filer_status",
    ),
    *(
        "previous_region",
        "previous_state",
        "household_detail",
        "household_summary",
        "instance_weight",
        "migration_msa",
    ),
    *(
        "migration_region",
        "migration_within_region",
        "same_house_a_year_ago",
        "migration_sunbelt",
        "persons_worked_for",
    ),
    *(
        "family_under_18",
        "birth_country_father",
        "birth_country_mother",
        "birth_country_self",
        "citizenship",
    ),
    *("own_business", "veterans_questionnaire", "veterans_benefits", "weeks_worked", "year"),
)
_WHERE = {
    "criteo": "the Criteo Kaggle Display Advertising Challenge: get dac.tar.gz from Criteo AI Lab and put its train.txt",
    "avazu": "the Avazu Kaggle competition: get train.gz from Kaggle (avazu-ctr-prediction) and put it, or its train.csv,",
    "aliccp": "Ali-CCP: get it from Alibaba's Tianchi (data set 408), or as ali_ccp_train/val/test.csv, and put the files",
    "census": "Census-Income (KDD): get it from the UCI repository and put its two files, as train.csv.gz and test.csv.gz,",
}
_MOVIELENS_AT = "https://files.grouplens.org/datasets/movielens/ml-1m.zip"
_MOVIELENS_MD5 = "c4d9eecfca2ab87c1945afe126590906"
_DAMAGES = (  # whatever zipfile raises on a damaged archive, or one that is packed in another way, or encrypted
    *(
        OSError,
        KeyError,
        ValueError,
        EOFError,
        NotImplementedError,
        RuntimeError,
        struct.error,
        zipfile.BadZipFile,
    ),
    *(zlib.error, lzma.LZMAError, pl.exceptions.PolarsError),
)


class Options(TypedDict, total=False):
    """What the public sets take by name; explained at `read`."""

    min_count: int
    seed: int
    cache: str | os.PathLike[str]
    progress: Progress


def criteo(
    path: str | os.PathLike[str],
    *,
    width: int = WIDTH,
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    split: splits.Split = "order",
    **options: Unpack[Options],
) -> Task:
    """Criteo's display advertising challenge: train.txt, 39 fields.

    Numbers are categories too: `int(log(x)^2)` above 2, else `int(x) - 2`, as the winners of the challenge had them.
    """
    source = open_source(
        _find(path, "criteo", ["train.txt", "train*.txt", "train.txt.gz"]),
        separator="\t",
        names=CRITEO,
    )
    numbers = [_in_steps(name).alias(name) for name in CRITEO[1:14]]
    return _read(
        [source],
        lambda frame: frame.with_columns(numbers),
        "criteo",
        "label",
        CRITEO[1:],
        width,
        shares,
        split,
        options,
    )


def _in_steps(name: str) -> pl.Expr:
    number = pl.col(name).cast(pl.Float64).fill_nan(None)  # strictly: what is no number is told
    steps = (
        pl.when(number > 2)
        .then(number.log() ** 2)
        .otherwise(number.cast(pl.Int64, strict=False) - 2)
    )
    return steps.cast(pl.Int64).cast(pl.String)


def avazu(
    path: str | os.PathLike[str],
    *,
    width: int = WIDTH,
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    split: splits.Split = "order",
    **options: Unpack[Options],
) -> Task:
    """Avazu's click-through rate competition: train.csv or train.gz, 22 fields; the rows' own id is no field."""
    source = open_source(
        _find(path, "avazu", ["train.csv", "train*.csv", "train.csv.gz", "train.gz"]), separator=","
    )
    names = source.names()
    if "click" not in names:
        raise DataError(
            f"{source.name}: expected Avazu's column 'click', but found {', '.join(names[:4])}, ..."
        )
    fields = [name for name in names if name not in ("id", "click")]
    return _read(
        [source], lambda frame: frame, "avazu", "click", fields, width, shares, split, options
    )


def movielens_1m(
    path: str | os.PathLike[str],
    *,
    width: int = WIDTH,
    shares: Sequence[float] = (0.8, 0.1, 0.1),
    split: splits.Split = "random",
    genres: str = "categorical",
    **options: Unpack[Options],
) -> Task:
    """MovieLens-1M: ml-1m.zip as it is downloaded, or the unpacked folder; 9 fields, the label is a rating above 3.

    Args:
        genres: "categorical" takes all genres of a movie as one category, as the benchmarks do; "list" pools them.
    """
    if genres not in ("categorical", "list"):
        raise DataError(f"genres must be 'categorical' or 'list', but is {genres!r}.")
    archive = _find(path, "movielens_1m", ["ml-1m.zip", "ratings.dat", "ml-1m/ratings.dat"])
    files = (
        (archive,)
        if archive.suffix == ".zip"
        else tuple(archive.parent / f"{n}.dat" for n in ("ratings", "users", "movies"))
    )
    source = Source(str(archive), _movielens(archive).lazy(), files=files)
    given: dict[str, Any] = {name: {"kind": "categorical"} for name in MOVIELENS}
    given["genres"] = (
        {"kind": "list", "separator": "|"} if genres == "list" else {"kind": "categorical"}
    )
    settings: dict[str, Any] = {"min_count": 1, **options}
    return read_sources(
        [source],
        None,
        label="rating",
        threshold=3,
        columns=given,
        only=MOVIELENS,
        width=width,
        split=split,
        shares=shares,
        **settings,
    )


def _movielens(archive: Path) -> pl.DataFrame:
    ratings = _double_colons(archive, "ratings", ["user_id", "movie_id", "rating", "timestamp"])
    users = _double_colons(archive, "users", ["user_id", "gender", "age", "occupation", "zip"])
    movies = _double_colons(archive, "movies", ["movie_id", "title", "genres"])
    for name, table, key in (("users", users, "user_id"), ("movies", movies, "movie_id")):
        twice = table[key].is_duplicated().arg_true()
        if len(twice):
            raise DataError(
                f"{archive}: expected one line a {key} in {name}.dat, but found {table[key][int(twice[0])]!r} twice."
            )
    joined = ratings.join(users, on="user_id", how="left", maintain_order="left")
    joined = joined.join(movies, on="movie_id", how="left", maintain_order="left")
    rated = joined.with_columns(pl.col("rating").cast(pl.Float64, strict=False))
    wrong = rated["rating"].is_null().arg_true()
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{archive}, ratings.dat, line {row + 1}: expected a rating, but found {joined['rating'][row]!r}."
        )
    return rated


def _double_colons(archive: Path, name: str, columns: list[str]) -> pl.DataFrame:
    try:
        content = _content(archive, name)
        text = content.decode("latin-1").replace("::", "\x1f")
        schema = dict.fromkeys(columns, pl.String())
        return pl.read_csv(
            io.StringIO(text), separator="\x1f", has_header=False, schema=schema, quote_char=None
        )
    except _DAMAGES as error:
        reason = first_line(error)
        raise DataError(
            f"{archive} is not a complete MovieLens-1M: {name}.dat cannot be read ({reason})."
        ) from error


def _content(archive: Path, name: str) -> bytes:
    if archive.suffix != ".zip":
        return (archive.parent / f"{name}.dat").read_bytes()
    with zipfile.ZipFile(archive) as packed, packed.open(f"ml-1m/{name}.dat") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise OSError(f"it unpacks to more than {LARGEST / 1e6:.0f} MB")
    return content


def aliccp(path: str | os.PathLike[str], *, width: int = WIDTH, **options: Unpack[Options]) -> Task:
    """Ali-CCP, 23 fields, the label is the click; a folder with one of these.

    - the preprocessed ali_ccp_train.csv, ali_ccp_val.csv, ali_ccp_test.csv, which are the three parts;
    - the original sample_skeleton_train.csv, common_features_train.csv and the same for test; half of the test rows validate.
    """
    folder = _folder(path, "aliccp")
    if list(folder.glob("sample_skeleton_train*")):
        train, test = _original_aliccp(folder, "train"), _original_aliccp(folder, "test")
        sources = [train, *_cut(test, 0.5)]
    else:
        patterns = [
            [f"ali_ccp_{part}.csv", f"ali_ccp_{part}*.csv*"] for part in ("train", "val", "test")
        ]
        sources = [
            open_source(_find(folder, "aliccp", pattern), separator=",") for pattern in patterns
        ]
    return _read(
        sources,
        lambda frame: frame,
        "aliccp",
        "click",
        ALICCP,
        width,
        (0.8, 0.1, 0.1),
        "order",
        options,
    )


def _original_aliccp(folder: Path, part: str) -> Source:
    """Rows with their features, and features that many rows share, as lists of fields with their values."""
    skeleton = open_source(
        _find(folder, "aliccp", [f"sample_skeleton_{part}.csv*"]),
        separator=",",
        names=("sample", "click", "purchase", "common", "count", "features"),
    )
    shared = open_source(
        _find(folder, "aliccp", [f"common_features_{part}.csv*"]),
        separator=",",
        names=("common", "count", "features"),
    )
    own = [_feature(field).alias(field) for field in ALICCP]
    rows = skeleton.frame.select("click", "common", *own)
    common = shared.frame.select("common", *own)
    joined = rows.join(common, on="common", how="left", maintain_order="left", suffix="_shared")
    frame = joined.select(
        "click", *[pl.coalesce(field, f"{field}_shared").alias(field) for field in ALICCP]
    )
    return Source(str(skeleton.files[0]), frame, text=True, files=(*skeleton.files, *shared.files))


def _feature(field: str) -> pl.Expr:
    return pl.col("features").str.extract(f"(?:^|\\x01){field}\\x02([^\\x01\\x03]*)", 1)


def census_income(
    path: str | os.PathLike[str], *, width: int | None = None, **options: Unpack[Options]
) -> Task:
    """Census-Income (KDD) 1994-95: a folder with train.csv and test.csv, perhaps packed; 41 fields, numbers among them.

    The label is an income above 50,000; the last tenth of the train file validates.
    """
    names = (*CENSUS, "income")
    train, test = (
        open_source(
            _find(_folder(path, "census"), "census", [f"{part}.csv*", f"census-income.{end}*"]),
            separator=",",
            names=names,
        )
        for part, end in (("train", "data"), ("test", "test"))
    )
    settings: dict[str, Any] = {"min_count": 1, **options}
    return read_sources(
        [*_cut(train, 0.9), test], None, label="income", positive="50000+.", width=width, **settings
    )


def _cut(source: Source, share: float) -> tuple[Source, Source]:
    """The first rows and the last ones of a source."""
    first = int(source.count() * share)
    both = replace(source, with_numbers=None, parts=None)
    before = source.lines_before + first
    return (
        replace(both, name=f"{source.name} (first rows)", frame=source.frame.head(first)),
        replace(
            both,
            name=f"{source.name} (last rows)",
            frame=source.frame.slice(first),
            lines_before=before,
        ),
    )


def _read(
    sources: Sequence[Source],
    change: Callable[[pl.LazyFrame], pl.LazyFrame],
    name: str,
    label: str,
    fields: Sequence[str],
    width: int,
    shares: Sequence[float],
    split: splits.Split,
    options: Options,
) -> Task:
    columns = {field: {"kind": "categorical"} for field in fields}
    settings: dict[str, Any] = {"min_count": 1, **options}
    return read_sources(
        sources,
        (name, change),
        label=label,
        columns=columns,
        only=fields,
        width=width,
        split=split,
        shares=shares,
        **settings,
    )


def _folder(path: str | os.PathLike[str], name: str) -> Path:
    """A folder with the files of several parts, for which one file would be all parts at once."""
    folder = Path(path)
    if folder.is_file():
        raise DataError(
            f"Expected a folder with the files of all parts, but found the file {folder}. {_how_to_get(name, folder)}"
        )
    return folder


def _find(path: str | os.PathLike[str], name: str, patterns: Sequence[str]) -> Path:
    """The file itself, or the first in a folder that fits."""
    given = Path(path)
    if given.is_file():
        return given
    found = (
        [file for pattern in patterns for file in sorted(given.glob(pattern)) if file.is_file()]
        if given.is_dir()
        else []
    )
    if not found:
        raise DataError(
            f"There is no {' or '.join(patterns[:2])} at {given}. {_how_to_get(name, given)}"
        )
    return found[0]


def _how_to_get(name: str, folder: Path) -> str:
    if name == "movielens_1m":
        return f"Get it: torchleap.data.download('movielens_1m', {str(folder)!r})."
    return f"It is {_WHERE[name]} there."


def download(
    name: str,
    folder: str | os.PathLike[str],
    *,
    address: str = _MOVIELENS_AT,
    checksum: str = _MOVIELENS_MD5,
    progress: Progress | None = None,
) -> Path:
    """Fetch a public set whose terms allow it into a folder: "movielens_1m". The others say where to get them.

    The file appears only after its checksum was verified; one that is there and right is not fetched again.
    """
    target = Path(folder) / "ml-1m.zip"
    if name != "movielens_1m":
        known = ("movielens_1m", *_WHERE)
        if name not in known:
            raise DataError(f"There is no data set {name!r}. {nearest(name, known)}")
        raise DataError(f"{name} may not be fetched for you. It is {_WHERE[name]} into {folder}.")
    if target.exists() and _md5(target) == checksum:
        return target
    make_folder(target.parent)
    with replace_file(target) as temporary:
        _fetch(address, temporary, progress or (lambda *_: None))
        found = _md5(temporary)
        if found != checksum:
            raise DataError(
                f"{address} has changed or came damaged: expected the MD5 {checksum}, but found {found}. Try again."
            )
    return target


def _fetch(address: str, target: Path, progress: Progress) -> None:
    try:
        with urllib.request.urlopen(address, timeout=60) as answer, target.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            while block := answer.read(1 << 18):
                file.write(block)
                progress("downloading", file.tell(), max(total, file.tell()))
            if total and file.tell() != total:
                raise DataError(
                    f"{address}: expected {total:,} bytes, but only {file.tell():,} came. Try again."
                )
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise DataError(
            f"{address} cannot be reached: {error}. Download it by hand and put it at {target.parent}."
        ) from error


def _md5(path: Path) -> str:
    found = md5(usedforsecurity=False)
    with path.open("rb") as file:
        shutil.copyfileobj(file, _Digest(found))
    return found.hexdigest()


class _Digest:
    """A file that only adds to a checksum."""

    def __init__(self, found: Any) -> None:
        self.write = found.update
