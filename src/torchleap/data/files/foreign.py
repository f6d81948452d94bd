"""Files of other formats: recognised by their first bytes, and refused in one sentence with the way to convert them."""

import gzip
import json
import re
import zlib
from pathlib import Path

from ..._common.errors import DataError, shown

HEAD = 4096  # bytes that are looked at
BINARY = (".parquet", ".pq", ".arrow", ".ipc", ".feather")  # endings of formats that are not text
KNOWN = "Parquet, CSV, TSV or Arrow"
DUCKDB = "Convert it: duckdb -c \"COPY (FROM {read}) TO '{stem}.parquet'\""
PANDAS = "python -c \"import pandas; pandas.{read}.to_parquet('{stem}.parquet')\""
_ADDRESS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/+(.+)$", re.DOTALL)
_COPY = {  # how files come from where an address points
    "s3": "aws s3 cp {address} .",
    "s3a": "aws s3 cp {address} .",
    "gs": "gcloud storage cp {address} .",
    "gcs": "gcloud storage cp {address} .",
    "hdfs": "hdfs dfs -get {address} .",
    "http": "curl -LO {address}",
    "https": "curl -LO {address}",
    "ftp": "curl -O {address}",
}

Format = tuple[
    str, str
]  # what it is called, and how it is converted; {file} and {stem} stand for its name
_MAGIC: tuple[tuple[int, bytes, Format], ...] = (  # where in the file, what stands there
    (
        0,
        b"SQLite format 3\0",
        (
            "an SQLite database",
            'Export a table: sqlite3 -csv -header {file} "SELECT * FROM name" > {stem}.csv',
        ),
    ),
    (
        8,
        b"DUCK",
        ("a DuckDB database", "Export a table: duckdb {file} \"COPY name TO '{stem}.parquet'\""),
    ),
    (
        0,
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
        ("an old Excel or Office file", "Save the sheet as CSV there"),
    ),
    (
        0,
        b"ORC",
        ("an ORC file", "Convert it: " + PANDAS.format(read="read_orc('{file}')", stem="{stem}")),
    ),
    (0, b"Obj\x01", ("an Avro file", DUCKDB.format(read="read_avro('{file}')", stem="{stem}"))),
    (
        0,
        b"\x89HDF\r\n\x1a\n",
        ("an HDF5 file", "Convert it: " + PANDAS.format(read="read_hdf('{file}')", stem="{stem}")),
    ),
    (
        0,
        b"\x93NUMPY",
        ("an array of numpy", "Write it as a table with names of columns, as CSV or Parquet"),
    ),
    (
        0,
        b"<stata_dta>",
        (
            "a Stata file",
            "Convert it: " + PANDAS.format(read="read_stata('{file}')", stem="{stem}"),
        ),
    ),
    (
        0,
        b"$FL2",
        ("an SPSS file", "Convert it: " + PANDAS.format(read="read_spss('{file}')", stem="{stem}")),
    ),
    (257, b"ustar", ("a tar archive", "Unpack it: tar -xf {file}")),
    (0, b"BZh", ("packed by bzip2", "Unpack it: bunzip2 {file}")),
    (0, b"\xfd7zXZ\0", ("packed by xz", "Unpack it: unxz {file}")),
    (0, b"7z\xbc\xaf\x27\x1c", ("a 7z archive", "Unpack it: 7z x {file}")),
    (0, b"%PDF", ("a PDF document", "Give a table as CSV or Parquet instead")),
    (0, b"\x89PNG", ("a picture", "Give a table as CSV or Parquet instead")),
)
_RENAMED: tuple[
    tuple[bytes, str, tuple[str, ...]], ...
] = (  # formats that are read, but by their ending
    (b"PAR1", "a Parquet file", (".parquet", ".pq")),
    (b"ARROW1", "an Arrow file", (".arrow", ".ipc", ".feather")),
    (b"\x1f\x8b", "packed by gzip", (".gz",)),
    (b"\x28\xb5\x2f\xfd", "packed by zstd", (".zst",)),
)


def refuse_address(path: str) -> None:
    """Raise on an address such as s3://...: only files of this machine are read."""
    found = _ADDRESS.match(path)
    if found is None:
        return
    scheme, rest = found[1].lower(), found[2]
    address = f"{scheme}://{rest}"
    if scheme == "file":
        raise DataError(
            f"Expected the path of a file, but found the address {shown(address, 200)}. Give /{rest[:200]} instead."
        )
    copy = _COPY.get(scheme, "").format(address=address[:300])
    cure = f"Copy it here first: {copy}" if copy else "Copy it here first."
    raise DataError(
        f"Expected a file on this machine, but found the address {shown(address, 300)}. {cure}"
    )


def refuse_table_folder(folder: Path) -> None:
    """Raise on a folder whose log says which of its files count: all of them together would be wrong rows."""
    kinds = {"Delta": folder / "_delta_log", "Iceberg": folder / "metadata"}
    for kind, log in kinds.items():
        if log.is_dir() and (kind == "Delta" or any(log.glob("*.metadata.json"))):
            raise DataError(
                f"{folder} is a {kind} table, some of whose files may hold rows that were removed since. "
                f"Export it first: duckdb -c \"COPY (FROM {kind.lower()}_scan('{folder}')) TO 'rows.parquet'\""
            )


def refuse_foreign(file: Path, suffix: str) -> None:
    """Raise if the first bytes of a file are those of a format that is not read, or not by this ending.

    Args:
        suffix: The ending by which the file would be read, such as ".csv".
    """
    head = _head(file)
    inner = _unpacked(file) if file.suffix in (".gz", ".zst") else head
    found = _named(head) or _named(inner) or _renamed(head, file, suffix)
    if found is None and suffix not in BINARY:
        found = _text(inner)
    if found is None:
        return
    name, way = found
    cure = way.format(file=file.name, stem=file.name.split(".")[0] or "rows")
    raise DataError(f"{file} cannot be read: it is {name}, but {KNOWN} was expected. {cure}")


def _head(file: Path) -> bytes:
    with file.open("rb") as content:
        return content.read(HEAD)


def _unpacked(file: Path) -> bytes:
    """Return the first bytes of what a .gz holds; none if it is damaged, or packed otherwise."""
    try:
        with gzip.open(file) as content:
            return content.read(HEAD)
    except (OSError, EOFError, zlib.error):
        return b""


def _named(head: bytes) -> Format | None:
    for place, magic, format_ in _MAGIC:
        if head[place : place + len(magic)] == magic:
            return format_
    if head.startswith(b"PK\x03\x04"):
        if b"xl/" in head or b"[Content_Types].xml" in head:
            read = PANDAS.format(read="read_excel('{file}')", stem="{stem}")
            return "an Excel workbook", f"Save the sheet as CSV, or convert it: {read}"
        return "a ZIP archive", "Unpack it: unzip {file}"
    if re.match(rb"\x80[\x02-\x05](\x95|[c}\](KXq])", head):
        return (
            "a pickle of Python, which can run code",
            "Write the table as Parquet where it was made: frame.to_parquet('{stem}.parquet')",
        )
    return None


def _renamed(head: bytes, file: Path, suffix: str) -> Format | None:
    """Return what the content is, if that is another format than the ending says."""
    for magic, name, endings in _RENAMED:
        if head.startswith(magic) and suffix not in endings and file.suffix not in endings:
            return (
                f"{name} without the ending that says so",
                f"Rename it: mv {{file}} {{file}}{endings[0]}",
            )
    if suffix in BINARY and not _is_binary(head):
        return f"text, not what {suffix} says", "If it is CSV, rename it: mv {file} {stem}.csv"
    return None


def _text(head: bytes) -> Format | None:
    """Return what text is, if it is not CSV in UTF-8."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or _every_second_is_zero(head):
        return "text in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8 {file} > {stem}-utf8.csv"
    if _is_binary(head):
        return "binary data of an unknown format", "Export it as CSV or Parquet where it was made"
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if re.match(rb"<(!doctype|html|\?xml)", start, re.IGNORECASE):
        return (
            "a web page or XML",
            "If it was downloaded, look at it in a browser: it may be a page about an error",
        )
    return _json(start)


def _is_binary(head: bytes) -> bool:
    """Say whether zeros or many control characters show that it is not text; those of databases separate columns."""
    controls = sum(
        byte < 32 and byte not in b"\t\n\v\f\r\x01\x02\x03\x1c\x1d\x1e\x1f" for byte in head
    )
    return b"\0" in head or controls > len(head) / 20


def _every_second_is_zero(head: bytes) -> bool:
    """Say whether it is UTF-16 of Latin letters without a mark at its start."""
    return len(head) > 8 and (not any(head[1:64:2]) or not any(head[0:64:2]))


def _json(start: bytes) -> Format | None:
    line = start.split(b"\n")[0].strip()
    if _is_record(line):
        return "JSON lines", DUCKDB.format(read="read_ndjson('{file}')", stem="{stem}")
    if re.match(rb"\[\s*[\[{]|\{\s*\"[^\"]*\"\s*:", start) or line in (b"{", b"["):
        return "JSON", DUCKDB.format(read="read_json('{file}')", stem="{stem}")
    return None


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
