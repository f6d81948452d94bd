"""Reports: a record, which is a plain dict, becomes one HTML file that opens anywhere, JSON, or static pictures."""

import html
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._common.errors import TorchleapError
from .._common.files import make_folder, replace_file, write_atomically
from .._common.plain import read_json
from .bench import bench_pictures
from .charts import select_pictures
from .page import needed, render
from .record import checked

__all__ = ["Report"]


class Report:
    """What a run found, to look at and to hand on.

    >>> fields = [{"name": "age", "width": 1, "score": 0.9, "kept": True}, {"name": "zip", "width": 8, "score": 0.1}]
    >>> Report({"format": 1, "kind": "select", "title": "Clicks", "method": "leap", "fields": fields})
    Report: select, 'Clicks'
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = checked(record)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Report":
        """Read a record that was written as JSON."""
        record = read_json(path, "a record of a report")
        try:
            return cls(record)
        except TorchleapError as error:
            raise TorchleapError(f"{path}: {error}") from error

    def html(self) -> str:
        """One standalone page: no other file, no network."""
        return render(self.record)

    def json(self) -> str:
        """The record, which `load` reads."""
        return json.dumps(self.record, indent=1, allow_nan=False) + "\n"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the page, or the record if the name ends in .json; the file appears whole or not at all."""
        write_atomically(path, self.json() if Path(path).suffix == ".json" else self.html())

    def png(self, folder: str | os.PathLike[str], *, scale: float = 2.0) -> list[Path]:
        """Write each chart as a picture; returns their paths.

        Its words are drawn with the fonts of this system. Chinese, Japanese or Korean names need a font that has them, or become
        boxes: apt-get install fonts-noto-cjk.
        """
        convert = needed("vl_convert").vegalite_to_png
        return self._pictures(folder, "png", lambda spec: convert(spec, scale=scale))

    def svg(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write each chart as a drawing that stays sharp at any size, in the fonts of who looks at it; returns their paths."""
        convert = needed("vl_convert").vegalite_to_svg
        return self._pictures(folder, "svg", lambda spec: convert(spec).encode())

    def _pictures(self, folder: str | os.PathLike[str], ending: str, draw: Any) -> list[Path]:
        make_folder(folder)
        drawn = (
            bench_pictures(self.record)
            if self.record["kind"] == "bench"
            else select_pictures(self.record)
        )
        written = []
        for name in drawn.specs:
            path = Path(folder) / f"{name}.{ending}"
            with replace_file(path) as temporary:
                temporary.write_bytes(draw(drawn.picture(name)))
            written.append(path)
        return written

    def _repr_html_(self) -> str:
        """The page inside a notebook, in a frame of its own."""
        page = html.escape(self.html(), quote=True)
        return f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" style="width:100%;height:720px;border:0"></iframe>'

    def __repr__(self) -> str:
        return f"Report: {self.record['kind']}, {str(self.record.get('title') or 'untitled')!r}"
