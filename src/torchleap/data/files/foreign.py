"""Files of other formats: recognised by their first bytes, and refused with a cure."""

import re
from pathlib import Path
from typing import NamedTuple

from ..._common.errors import DataError
from ..._common.plain import parse_json
from .formats import FORMATS
from .packed import PACKED, beginning

HEAD = 4096  # bytes that are looked at
KNOWN = "Parquet, CSV, TSV or Arrow"
LOOKED_AT = 64  # bytes by which UTF-16 is recognised
TEXT_CONTROLS = b"\t\n\v\f\r\x01\x02\x03\x1c\x1d\x1e\x1f"  # some databases separate columns so


class Foreign(NamedTuple):
    """A format that is not read.

    Attributes:
        title: The name of such a file, with its article.
        cure: How to convert it; {file} stands for its name and {stem} for that without endings.
    """

    title: str
    cure: str


def _by_pandas(title: str, reader: str) -> Foreign:
    call = f"import pandas; pandas.{reader}('{{file}}').to_parquet('{{stem}}.parquet')"
    return Foreign(title, f'Convert it: python -c "{call}"')


def _by_duckdb(title: str, reader: str) -> Foreign:
    call = f"COPY (FROM {reader}('{{file}}')) TO '{{stem}}.parquet'"
    return Foreign(title, f'Convert it: duckdb -c "{call}"')


SQLITE = Foreign(
    "an SQLite database",
    'Export a table: sqlite3 -csv -header {file} "SELECT * FROM name" > {stem}.csv',
)
DUCKDB = Foreign(
    "a DuckDB database", "Export a table: duckdb {file} \"COPY name TO '{stem}.parquet'\""
)
OFFICE = Foreign("an old Excel or Office file", "Save the sheet as CSV there")
NUMPY = Foreign("an array of numpy", "Write it as a table with names of columns, as CSV or Parquet")
PICKLE = Foreign(
    "a pickle of Python, which can run code",
    "Write the table as Parquet where it was made: frame.to_parquet('{stem}.parquet')",
)
EXCEL = Foreign(
    "an Excel workbook",
    "Save the sheet as CSV, or convert it: python -c "
    "\"import pandas; pandas.read_excel('{file}').to_parquet('{stem}.parquet')\"",
)
UTF_16 = Foreign("text in UTF-16", "Convert it: iconv -f UTF-16 -t UTF-8 {file} > {stem}-utf8.csv")
UNKNOWN = Foreign(
    "binary data of an unknown format", "Export it as CSV or Parquet where it was made"
)
WEB_PAGE = Foreign(
    "a web page or XML",
    "If it was downloaded, open it in a browser: it may be a page about an error",
)
NOT_A_TABLE = "Give a table as CSV or Parquet instead"

MAGIC: tuple[tuple[int, bytes, Foreign], ...] = (  # the place in the file, and the bytes there
    (0, b"SQLite format 3\0", SQLITE),
    (8, b"DUCK", DUCKDB),
    (0, b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", OFFICE),
    (0, b"ORC", _by_pandas("an ORC file", "read_orc")),
    (0, b"Obj\x01", _by_duckdb("an Avro file", "read_avro")),
    (0, b"\x89HDF\r\n\x1a\n", _by_pandas("an HDF5 file", "read_hdf")),
    (0, b"\x93NUMPY", NUMPY),
    (0, b"<stata_dta>", _by_pandas("a Stata file", "read_stata")),
    (0, b"$FL2", _by_pandas("an SPSS file", "read_spss")),
    (257, b"ustar", Foreign("a tar archive", "Unpack it: tar -xf {file}")),
    (0, b"BZh", Foreign("packed by bzip2", "Unpack it: bunzip2 {file}")),
    (0, b"\xfd7zXZ\0", Foreign("packed by xz", "Unpack it: unxz {file}")),
    (0, b"7z\xbc\xaf\x27\x1c", Foreign("a 7z archive", "Unpack it: 7z x {file}")),
    (0, b"%PDF", Foreign("a PDF document", NOT_A_TABLE)),
    (0, b"\x89PNG", Foreign("a picture", NOT_A_TABLE)),
)
PACKINGS = {b"\x1f\x8b": ("packed by gzip", ".gz"), b"\x28\xb5\x2f\xfd": ("packed by zstd", ".zst")}


def refuse_foreign(file: Path, ending: str) -> None:
    """Raise a DataError on a file of a format that is not read, or not by this ending.

    Args:
        file: The file, of which the first bytes are read.
        ending: The ending by which the file would be read, such as ".csv".
    """
    with file.open("rb") as content:
        head = content.read(HEAD)
    inner = beginning(file, HEAD) if file.suffix in PACKED else head
    found = _named(head) or _named(inner) or _misnamed(head, file, ending)
    if found is None and not _is_binary_format(ending):
        found = _text(inner)
    if found is None:
        return
    cure = found.cure.format(file=file.name, stem=file.name.split(".")[0] or "rows")
    raise DataError(f"{file} cannot be read: it is {found.title}, but {KNOWN} was expected. {cure}")


def _is_binary_format(ending: str) -> bool:
    return ending in FORMATS and FORMATS[ending].magic is not None


def _named(head: bytes) -> Foreign | None:
    """Return the format that the first bytes name; None if they name none."""
    for place, magic, foreign in MAGIC:
        if head[place : place + len(magic)] == magic:
            return foreign
    if head.startswith(b"PK\x03\x04"):
        if b"xl/" in head or b"[Content_Types].xml" in head:
            return EXCEL
        return Foreign("a ZIP archive", "Unpack it: unzip {file}")
    if re.match(rb"\x80[\x02-\x05](\x95|[c}\](KXq])", head):
        return PICKLE
    return None


def _misnamed(head: bytes, file: Path, ending: str) -> Foreign | None:
    """Return the format of a file whose ending names another one; None if its ending is right."""
    for own, known in FORMATS.items():
        is_own = known.magic is not None and head.startswith(known.magic)
        if is_own and FORMATS.get(ending) is not known:
            return _to_rename(known.title, own)
    for magic, (title, own) in PACKINGS.items():
        if head.startswith(magic) and file.suffix != own:
            return _to_rename(title, own)
    if _is_binary_format(ending) and not _is_binary(head):
        return Foreign(
            f"text, not what {ending} means", "If it is CSV, rename it: mv {file} {stem}.csv"
        )
    return None


def _to_rename(title: str, ending: str) -> Foreign:
    return Foreign(
        f"{title} without the ending that shows it", f"Rename it: mv {{file}} {{file}}{ending}"
    )


def _text(head: bytes) -> Foreign | None:
    """Return the format of text that is not CSV in UTF-8; None if it may be that."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")) or _every_second_is_zero(head):
        return UTF_16
    if _is_binary(head):
        return UNKNOWN
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if re.match(rb"<(!doctype|html|\?xml)", start, re.IGNORECASE):
        return WEB_PAGE
    return _json(start)


def _is_binary(head: bytes) -> bool:
    """Return whether zeros or many control characters show that it is not text."""
    controls = sum(byte < 32 and byte not in TEXT_CONTROLS for byte in head)
    return b"\0" in head or controls > len(head) / 20


def _every_second_is_zero(head: bytes) -> bool:
    """Return whether it is UTF-16 of Latin letters without a mark at its start."""
    if len(head) <= 8:
        return False
    return not any(head[1:LOOKED_AT:2]) or not any(head[0:LOOKED_AT:2])


def _json(start: bytes) -> Foreign | None:
    line = start.split(b"\n")[0].strip()
    if _is_record(line):
        return _by_duckdb("JSON lines", "read_ndjson")
    if re.match(rb"\[\s*[\[{]|\{\s*\"[^\"]*\"\s*:", start) or line in (b"{", b"["):
        return _by_duckdb("JSON", "read_json")
    return None


def _is_record(line: bytes) -> bool:
    try:
        return isinstance(parse_json(line), dict)
    except ValueError:
        return False
