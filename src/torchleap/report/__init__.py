"""Reports: a record becomes one HTML file that opens anywhere, JSON, or static pictures.

See README.md in this folder for how a section is added.
"""

import html
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .._common.errors import TorchleapError
from .._common.files import make_folder, write_atomically
from .._common.plain import as_json, read_json
from .charts import pictures
from .page import needed, render
from .record import checked

__all__ = ["Report"]


class Report:
    """The report of a record, to read in a browser or a notebook and to pass on.

    >>> age = {"name": "age", "width": 1, "score": 0.9, "kept": True}
    >>> zip_code = {"name": "zip", "width": 8, "score": 0.1}
    >>> Report({"format": 1, "kind": "select", "title": "Clicks", "fields": [age, zip_code]})
    Report: select, 'Clicks'

    Args:
        record: As `torchleap.pipeline.record` describes it: `Decision.record`, or the content of
            a report.json. It is checked and copied.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = checked(record)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Report":
        """Return the report of a record that was written as JSON."""
        record = read_json(path, "a record of a report")
        try:
            return cls(record)
        except TorchleapError as error:
            raise TorchleapError(f"{path}: {error}") from error

    def html(self) -> str:
        """Return the report as one standalone page, which needs no other file and no network."""
        return render(self.record)

    def json(self) -> str:
        """Return the record as JSON, which `load` reads."""
        return as_json(self.record, indent=1)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page, or the record if the name ends in .json, atomically."""
        content = self.json() if Path(path).suffix == ".json" else self.html()
        write_atomically(path, content)

    def png(self, folder: str | os.PathLike[str], *, scale: float = 2.0) -> list[Path]:
        """Write each chart as a PNG picture and return the paths.

        Text is drawn with the fonts of this system. Chinese, Japanese and Korean names need a
        font that has them, or become boxes: apt-get install fonts-noto-cjk.

        Args:
            folder: The folder for the pictures, which is made if it does not exist.
            scale: Pixels per point; 2 is sharp on most screens.
        """
        convert = needed("vl_convert").vegalite_to_png
        return self._draw(folder, "png", lambda spec: convert(spec, scale=scale))

    def svg(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write each chart as an SVG drawing, in the fonts of its reader, and return the paths."""
        convert = needed("vl_convert").vegalite_to_svg
        return self._draw(folder, "svg", lambda spec: convert(spec).encode())

    def _draw(
        self,
        folder: str | os.PathLike[str],
        ending: str,
        draw: Callable[[dict[str, Any]], bytes],
    ) -> list[Path]:
        place = make_folder(folder)
        drawn = pictures(self.record)
        written = []
        for name in drawn.specs:
            path = place / f"{name}.{ending}"
            write_atomically(path, draw(drawn.picture(name)))
            written.append(path)
        return written

    def _repr_html_(self) -> str:
        """Return the page for a notebook, in a frame of its own."""
        page = html.escape(self.html(), quote=True)
        sandbox = 'sandbox="allow-scripts allow-downloads"'
        style = 'style="width:100%;height:720px;border:0"'
        return f'<iframe srcdoc="{page}" {sandbox} {style}></iframe>'

    def __repr__(self) -> str:
        title = str(self.record.get("title") or "untitled")
        return f"Report: {self.record['kind']}, {title!r}"
