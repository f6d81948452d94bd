"""download: public sets whose terms allow it, fetched and verified."""

import os
import urllib.error
import urllib.request
from hashlib import file_digest, md5
from pathlib import Path

from ..._common.errors import DataError, nearest
from ..._common.files import make_folder, replace_file
from ..files.options import Progress, no_progress
from .aliccp import PLACE as ALICCP
from .avazu import PLACE as AVAZU
from .census import PLACE as CENSUS
from .criteo import PLACE as CRITEO

MOVIELENS = "https://files.grouplens.org/datasets/movielens/ml-1m.zip"
MOVIELENS_MD5 = "c4d9eecfca2ab87c1945afe126590906"
BLOCK = 1 << 18  # bytes that are fetched together
TIMEOUT = 60  # seconds
OTHERS = {place.name: place for place in (CRITEO, AVAZU, ALICCP, CENSUS)}  # not to be fetched


def download(
    name: str,
    folder: str | os.PathLike[str],
    *,
    address: str = MOVIELENS,
    checksum: str = MOVIELENS_MD5,
    progress: Progress | None = None,
) -> Path:
    """Fetch a public set into a folder and return its path.

    The file appears only after its checksum was verified; a correct one is not fetched again.

    Args:
        name: "movielens_1m"; for the other sets, the error names the place to get them.
        folder: The folder, which is made if it does not exist.
        address: Where the file is fetched from.
        checksum: The MD5 of the file.
        progress: Called with the step, how many bytes are done, and of how many.
    """
    if name in OTHERS:
        raise DataError(
            f"{name} may not be fetched for you. It is {OTHERS[name].origin} into {folder}."
        )
    if name != "movielens_1m":
        raise DataError(
            f"There is no data set {name!r}. {nearest(name, ('movielens_1m', *OTHERS))}"
        )
    target = Path(folder) / "ml-1m.zip"
    if target.exists() and _md5(target) == checksum:
        return target
    make_folder(target.parent)
    with replace_file(target) as temporary:
        _fetch(address, temporary, progress or no_progress)
        found = _md5(temporary)
        if found != checksum:
            raise DataError(
                f"{address} has changed or came damaged: expected the MD5 {checksum}, "
                f"but found {found}. Try again."
            )
    return target


def _fetch(address: str, target: Path, progress: Progress) -> None:
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer, target.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0)
            while block := answer.read(BLOCK):
                file.write(block)
                progress("downloading", file.tell(), max(total, file.tell()))
            if total and file.tell() != total:
                raise DataError(
                    f"{address}: expected {total:,} bytes, but only {file.tell():,} came. "
                    "Try again."
                )
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise DataError(
            f"{address} cannot be reached: {error}. "
            f"Download it by hand and put it at {target.parent}."
        ) from error


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, lambda: md5(usedforsecurity=False)).hexdigest()
