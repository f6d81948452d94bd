"""The page: a record in, one standalone HTML file out, made from the files in templates/."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from .._common.optional import need
from . import colours, numbers
from .bench import bench_context
from .charts import charts_of
from .charts.pieces import FONT
from .select import select_context

TEMPLATES = Path(__file__).parent / "templates"
SCRIPTS = ("page.js", "charts.js", "ladder.js", "planner.js", "tables.js", "begin.js")


def render(record: Mapping[str, Any]) -> str:
    """Return the page of a record that was checked."""
    drawn = charts_of(record)
    is_bench = record["kind"] == "bench"
    context = bench_context(record) if is_bench else select_context(record, drawn)
    script = {"specs": drawn.specs, "data": drawn.data, **context.pop("script")}
    page: str = (
        _environment()
        .get_template("page.html")
        .render(
            record=record,
            charts=drawn.specs,
            numbers=numbers,
            settings=_settings(record),
            font=FONT,
            light=colours.style_sheet(colours.LIGHT),
            dark=colours.style_sheet(colours.DARK),
            style=_template("page.css"),
            script="\n".join(map(_template, SCRIPTS)),
            library=_library(),
            data=embedded(script),
            **context,
        )
    )
    return page


def needed(package: str) -> Any:
    """Return a package of the extra "report"; raise an error with the pip line if it is missing."""
    return need(package, "report", "A report")


def embedded(value: Any) -> str:
    r"""Return JSON that can be placed inside a script element, whatever its strings contain.

    >>> embedded("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))  # escapes U+2028 and U+2029
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _environment() -> Any:
    jinja2 = needed("jinja2")
    loader = jinja2.FileSystemLoader(TEMPLATES)
    return jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)


@cache
def _template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


@cache
def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script."""
    bundle: str = needed("vl_convert").javascript_bundle(snippet="window.vegaEmbed=vegaEmbed;")
    return bundle.replace("</script", "<\\/script")


def _settings(record: Mapping[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return all settings in groups, each with a title, as pairs of text."""
    run = {key: record.get(key) for key in ("method", "model", "seed", "rule", "machine")}
    own = "Benchmark" if record["kind"] == "bench" else "Method"
    groups: dict[str, Mapping[str, Any]] = {
        "Run": _known(run),
        "Data": _known(_task(record)),
        own: record.get("settings") or {},
        "Model": record.get("model_settings") or {},
        "Training": record.get("training") or {},
        "Versions": record.get("versions") or {},
    }
    tables = []
    for title, pairs in groups.items():
        if pairs:
            tables.append((title, [(key, numbers.anything(item)) for key, item in pairs.items()]))
    times = record.get("seconds") or {}
    if times:
        tables.append(("Time", [(key, numbers.seconds(item)) for key, item in times.items()]))
    return tables


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _task(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the data, with the counts of each part as entries of their own."""
    task = {**(record.get("task") or {})}
    for key in ("rows", "positives"):
        for part, count in (task.pop(key, None) or {}).items():
            task[f"{part} {key}"] = numbers.count(count)
    return task
