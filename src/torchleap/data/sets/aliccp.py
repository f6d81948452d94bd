"""Ali-CCP, clicks in Taobao's recommender."""

import os
from pathlib import Path
from typing import Unpack

import polars as pl

from ..files.open import open_source
from ..files.source import Source
from ..task import Task
from .options import WIDTH, Options, read_categories
from .places import Place, cut

FIELDS = [
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
    "508",
    "509",
    "702",
    "853",
    "301",
    "109_14",
    "110_14",
    "127_14",
    "150_14",
]
PLACE = Place(
    "aliccp",
    "Ali-CCP: get it from Alibaba's Tianchi (data set 408), "
    "or as ali_ccp_train/val/test.csv, and put the files",
)


def aliccp(path: str | os.PathLike[str], *, width: int = WIDTH, **options: Unpack[Options]) -> Task:
    """Return Ali-CCP as a task of 23 fields, whose label is the click.

    Args:
        path: A folder with the preprocessed ali_ccp_train.csv, ali_ccp_val.csv and
            ali_ccp_test.csv, which are the three parts; or with the original
            sample_skeleton_train.csv, common_features_train.csv and the same for test, half of
            whose test rows validate.
        width: The width of all embeddings.
        options: As for `read`.
    """
    folder = PLACE.folder(path)
    if list(folder.glob("sample_skeleton_train*")):
        sources = [_original(folder, "train"), *cut(_original(folder, "test"), 0.5)]
    else:
        sources = [_preprocessed(folder, part) for part in ("train", "val", "test")]
    return read_categories(
        sources,
        label="click",
        fields=FIELDS,
        options=options,
        width=width,
    )


def _preprocessed(folder: Path, part: str) -> Source:
    file = PLACE.find(folder, [f"ali_ccp_{part}.csv", f"ali_ccp_{part}*.csv*"])
    return open_source(file, separator=",")


def _original(folder: Path, part: str) -> Source:
    """Return the rows of a part with their own features and those that many rows have in common.

    Both files hold features as lists of fields with their values.
    """
    skeleton = open_source(
        PLACE.find(folder, [f"sample_skeleton_{part}.csv*"]),
        separator=",",
        names=["sample", "click", "purchase", "common", "count", "features"],
    )
    shared = open_source(
        PLACE.find(folder, [f"common_features_{part}.csv*"]),
        separator=",",
        names=["common", "count", "features"],
    )
    values = [_feature(field).alias(field) for field in FIELDS]
    rows = skeleton.frame.select("click", "common", *values)
    common = shared.frame.select("common", *values)
    joined = rows.join(common, on="common", how="left", maintain_order="left", suffix="_common")
    own_first = [pl.coalesce(field, f"{field}_common").alias(field) for field in FIELDS]
    frame = joined.select("click", *own_first)
    return Source(str(skeleton.files[0]), frame, text=True, files=(*skeleton.files, *shared.files))


def _feature(field: str) -> pl.Expr:
    return pl.col("features").str.extract(f"(?:^|\\x01){field}\\x02([^\\x01\\x03]*)", 1)
