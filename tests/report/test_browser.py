"""The page in a real browser: what a reader sees, clicks and downloads."""

import json
import shutil

import pytest

from torchleap import Selection
from torchleap.report import Report
from torchleap.report.numbers import MINUS, UNKNOWN

from .records import (
    UGLY,
    bench_record,
    large_bench_record,
    path_record,
    select_record,
    selection_of,
)

playwright = pytest.importorskip(
    "playwright.sync_api", reason="the report is tested in a browser: pip install playwright"
)
CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: apt-get install chromium"
)
LAPTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, tmp_path):
    """Open the report of a record; the page may neither report an error nor use the network."""
    wrong, contexts = [], []

    def open_page(record, viewport=LAPTOP, **settings):
        path = tmp_path / "report.html"
        Report(record).write(path)
        context = browser.new_context(viewport=viewport, **settings)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on(
            "request",
            lambda request: request.url.startswith(("file:", "blob:")) or wrong.append(request.url),
        )
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def texts(page, selector):
    return page.locator(selector).all_inner_texts()


def visible_names(page):
    return page.evaluate(
        "[...document.querySelectorAll('#ladder [data-field]:not([hidden]) .name')]"
        ".map((e) => e.textContent)"
    )


@pytest.mark.parametrize("viewport", [LAPTOP, PHONE], ids=["laptop", "phone"])
@pytest.mark.parametrize(
    "record",
    [
        select_record(12),
        path_record(12, costs=True),
        path_record(40, metric="log_loss", rule={"worth": 1e-4}),
        select_record(40, method="permutation", difference=(0.002, (0.001, 0.003))),
        {
            "format": 1,
            "kind": "select",
            "fields": [{"name": "a"}, {"name": "b", "score": 0.5, "kept": True}],
        },
        bench_record(),
        large_bench_record(),
    ],
    ids=[
        "leap",
        "path",
        "long path",
        "permutation",
        "hardly anything known",
        "bench",
        "large bench",
    ],
)
def test_every_chart_is_drawn_and_nothing_sticks_out_of_the_page(visit, record, viewport):
    page = visit(record, viewport)
    assert page.locator("[data-chart] svg").count() == page.locator("[data-chart]").count()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_axis_of_gates_is_labelled(visit):
    page = visit(select_record(64))
    labels = page.locator("[data-chart=width] .role-axis-label text").all_text_contents()
    assert {"0", "0.25", "0.5", "0.75", "1"} <= set(labels)


def test_hostile_names_are_shown_and_not_run(visit):
    record = select_record(30)
    record |= {
        "title": UGLY[1],
        "notes": [UGLY[0]],
        "command": UGLY[1],
        "settings": {UGLY[0]: UGLY[1]},
    }
    page = visit(record)
    assert sorted(visible_names(page)) == sorted(f["name"] for f in record["fields"])
    assert set(UGLY) <= set(visible_names(page))
    assert page.locator("h1").inner_text() == UGLY[1]
    page.locator("#ladder [data-field]").first.hover()
    for name in UGLY[:2]:
        page.locator(".query").first.fill(name)
        page.locator("#ladder [data-field]:not([hidden])").click()
        assert page.locator("#tip strong").inner_text() == name
    assert page.evaluate("window.hacked === undefined && document.images.length === 0")


@pytest.mark.parametrize("viewport", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_the_command_is_broken_between_words_and_copied_as_it_is(visit, viewport):
    command = (
        "torchleap select 'my clicks.parquet' "
        + " ".join(f"--some-option-{n} {n}" for n in range(20))
        + f" --out {'x' * 90}"
    )
    page = visit(select_record(12) | {"command": command}, viewport)
    lines = page.evaluate(
        "[...document.querySelectorAll('#command span')]"
        ".map((word) => word.getClientRects().length)"
    )
    assert set(lines) == {1}
    assert page.evaluate(
        "document.querySelector('#command').clientHeight > 40"
    )  # else nothing had to be broken
    page.locator("#copy").click()
    assert page.evaluate("getSelection().toString()") == command
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_search_filters_the_ladder_and_the_table_together(visit):
    page = visit(select_record(64))
    page.locator(".query").first.fill("PRICE")
    found = visible_names(page)
    assert 0 < len(found) < 64
    assert all("price" in name.lower() for name in found)
    assert page.locator("#table tbody tr:visible").count() == len(found)
    assert texts(page, ".found")[0] == f"{len(found)} of 64 fields"
    page.locator(".query").last.fill("no such field")
    assert visible_names(page) == []
    assert page.locator(".empty").is_visible()
    page.locator(".query").last.fill("")
    assert len(visible_names(page)) == 64


def test_the_table_sorts_by_any_column_by_mouse_and_by_key(visit):
    record = select_record(30)
    page = visit(record)
    names = [f["name"] for f in record["fields"]]

    def column(key):
        place = page.evaluate(
            "[...document.querySelectorAll('#table th')].map((e) => e.textContent)"
        ).index(key)
        return page.locator("#table th button").nth(
            place
        ), f"#table tbody tr td:nth-child({place + 1})"

    button, cells = column("Width")
    button.click()
    assert [int(text) for text in texts(page, cells)] == sorted(
        (f["width"] for f in record["fields"]), reverse=True
    )
    button.focus()
    page.keyboard.press("Enter")
    assert [int(text) for text in texts(page, cells)] == sorted(
        f["width"] for f in record["fields"]
    )
    assert page.locator("#table th[aria-sort=ascending]").inner_text().strip().startswith("Width")
    button, cells = column("Ids")
    button.click()
    known = [text != UNKNOWN for text in texts(page, cells)]
    assert known == sorted(known, reverse=True)  # what is not known comes last, either way
    assert len(texts(page, "#table tbody tr")) == len(names)


def bench_of(**columns):
    table = {
        "title": "Methods",
        "columns": list(columns),
        "rows": list(zip(*columns.values(), strict=True)),
    }
    return {"format": 1, "kind": "bench", "tables": [table]}


@pytest.mark.parametrize(
    ("cells", "downwards"),
    [
        (
            ["0.8097 ± 0.0006", "0.81 ± 0.1", "-", "0.0999 ± 0.2"],
            ["0.81 ± 0.1", "0.8097 ± 0.0006", "0.0999 ± 0.2", "-"],
        ),
        (
            ["+0.0032 ± 0.0005", "-0.0101 ± 0.1", MINUS + "0.0007", "+0.0100"],
            ["+0.0100", "+0.0032 ± 0.0005", MINUS + "0.0007", "-0.0101 ± 0.1"],
        ),
        (["12.3 s", "2 min 5 s", "950 ms", "9.9 s"], ["2 min 5 s", "12.3 s", "9.9 s", "950 ms"]),
        ([9.5, 123.25, None, -0.5], ["123.25", "9.5000", MINUS + "0.5000", UNKNOWN]),
        ([9, 12_000, 100, "-"], ["12,000", "100", "9", "-"]),
    ],
    ids=["with an error", "signed", "times", "floats", "counts"],
)
def test_a_column_of_numbers_sorts_by_size_with_the_unknown_last(visit, cells, downwards):
    page = visit(bench_of(method=list("abcd"), value=cells))
    head, shown = page.locator("#tables th").nth(1), "#tables td:nth-child(2)"
    assert head.get_attribute("aria-sort") is None
    head.locator("button").click()
    assert (texts(page, shown), head.get_attribute("aria-sort")) == (downwards, "descending")
    page.keyboard.press("Enter")  # it has the focus
    known = [text for text in downwards if text not in ("-", UNKNOWN)]
    assert (texts(page, shown), head.get_attribute("aria-sort")) == (
        known[::-1] + downwards[len(known) :],
        "ascending",
    )


def test_a_column_of_words_sorts_by_letter_and_moves_complete_rows(visit):
    names = ["seed 10", "-", UGLY[0], "seed 9", "Leap", UGLY[1]]
    page = visit(
        bench_of(name=names, place=[0, 1, 2, 3, 4, 5]) | {"title": UGLY[1], "summary": [UGLY[0]]}
    )
    page.locator("#tables th button").nth(1).focus()
    page.keyboard.press("Space")
    assert texts(page, "#tables td:nth-child(2)") == ["5", "4", "3", "2", "1", "0"]
    page.locator("#tables th button").first.click()
    shown = texts(page, "#tables td:first-child")
    assert shown == [UGLY[1], UGLY[0], "Leap", "seed 9", "seed 10", "-"]
    assert [names[int(place)] for place in texts(page, "#tables td:nth-child(2)")] == shown
    assert page.locator("#tables th[aria-sort]").all_inner_texts() == ["name"]
    assert page.locator("#summary").inner_text() == UGLY[0]
    assert page.evaluate("window.hacked === undefined && document.images.length === 0")


def test_each_table_sorts_alone_scrolls_in_its_box_and_keeps_its_head_in_sight(visit):
    page = visit(large_bench_record(), PHONE)
    page.locator("#tables table").nth(1).locator("th button").last.click()
    assert page.locator("#tables table").first.locator("th[aria-sort]").count() == 0
    box = page.locator("#tables .scroll-both").first
    top, left = "(e) => e.getBoundingClientRect().top", "(e) => e.getBoundingClientRect().left"
    assert box.evaluate("(e) => e.scrollWidth > e.clientWidth && e.scrollHeight > e.clientHeight")
    box.evaluate("(e) => e.scrollTo(250, 300)")
    assert abs(box.locator("th").last.evaluate(top) - box.evaluate(top)) < 3
    assert box.locator("td").first.evaluate(top) < box.evaluate(top) - 200
    assert abs(box.locator("td").first.evaluate(left) - box.evaluate(left)) < 3
    assert box.locator("td").nth(1).evaluate(left) < box.evaluate(left)


def test_a_point_of_a_curve_is_described_in_the_words_of_its_axes(visit):
    page = visit(large_bench_record())
    page.locator("[data-chart=curve-0] .mark-symbol path").first.hover()
    assert page.locator("#tip strong").inner_text() == "leap"
    assert texts(page, "#tip dt") == ["share of fields kept", "test AUC", "from", "to"]


def test_the_slider_changes_the_list_and_the_expected_metric(visit):
    record = select_record(12)
    page = visit(record)
    kept = [f["name"] for f in record["fields"] if f["kept"]]
    assert sorted(texts(page, "#kept-names li")) == sorted(" ".join(name.split()) for name in kept)
    assert "This is the report's selection" in page.locator("#planned").inner_text()
    assert "Expected AUC about 0." in page.locator("#planned").inner_text()
    page.locator("#dims").focus()
    page.keyboard.press("Home")
    assert len(texts(page, "#kept-names li")) < len(kept)
    assert "Expected AUC about 0." in page.locator("#planned").inner_text()
    page.locator("#dims").fill(str(sum(f["width"] for f in record["fields"]) // 2))
    assert (
        "Expected AUC between 0." in page.locator("#planned").inner_text()
    )  # the best field is too wide and passed over
    page.locator("#dims-number").fill(str(sum(f["width"] for f in record["fields"])))
    assert len(texts(page, "#kept-names li")) == 12
    assert texts(page, "#dropped-names li") == []


def test_a_field_that_the_curve_never_dropped_leaves_only_a_bound(visit):
    record = select_record(12)
    record["curve"]["order"].pop()
    record["curve"]["points"].pop()
    page = visit(record)
    page.locator("#dims").fill(str(sum(f["width"] for f in record["fields"]) // 2))
    assert "Expected AUC below 0." in page.locator("#planned").inner_text()


def axis_titles(page):
    return page.locator("[data-chart=path] .role-axis-title text").all_text_contents()


def metric_ticks(page):
    """Return the labels of the axis of the metric, which have a decimal point."""
    labels = page.locator("[data-chart=path] .role-axis-label text").all_text_contents()
    return [text for text in labels if "." in text]


def lines_across(page, selector):
    """Return the places of vertical lines of the path's chart, in pixels from the left."""
    return page.evaluate(
        "(found) => [...document.querySelectorAll(`[data-chart=path] .mark-rule line${found}`)]"
        ".map((line) => line.getBoundingClientRect().left)",
        selector,
    )


def test_the_path_is_drawn_against_the_quantity_that_is_chosen(visit):
    page = visit(path_record(30, costs=True))
    assert axis_titles(page) == ["fields kept", "AUC on validation rows"]
    for choice, title in (
        ("dimensions", "dimensions kept"),
        ("cost", "cost of the kept fields"),
        ("fields", "fields kept"),
    ):
        page.locator("#path .switch label", has_text=choice).click()
        page.wait_for_timeout(100)
        assert axis_titles(page)[0] == title


def test_the_path_is_shown_near_the_best_or_completely(visit):
    record = path_record(30)
    worst = min(point["metric"] for point in record["path"]["points"])
    page = visit(record)
    near = metric_ticks(page)
    assert float(near[0]) > worst + 0.01
    page.locator("#path .switch label", has_text="all points").click()
    page.wait_for_timeout(100)
    assert float(metric_ticks(page)[0]) < worst + 0.01
    page.locator("#path .switch label", has_text="near the best").click()
    page.wait_for_timeout(100)
    assert metric_ticks(page) == near


def test_a_point_of_the_path_lists_its_interval_price_and_what_closes_next(visit):
    record = path_record(12, ugly=False)
    first, second = record["path"]["points"][:2]
    page = visit(record)
    page.locator("[data-chart=path]").scroll_into_view_if_needed()
    chart = page.locator("[data-chart=path] svg").bounding_box()
    left = lines_across(page, "[opacity='0']")[0]
    page.mouse.move(left, chart["y"] + chart["height"] / 2)
    assert page.locator("#tip strong").inner_text() == "12 fields"
    assert texts(page, "#tip dt") == ["AUC", "dimensions", "price", "closes next"]
    metric, dims, price, closes = texts(page, "#tip dd")
    assert metric == f"{first['metric']:.4f} ({first['low']:.4f} to {first['high']:.4f})"
    assert (dims, price) == (str(first["dims"]), "0.00002 nats")
    assert closes == ", ".join(second["closed"])


def test_the_slider_expects_the_metric_of_the_path_and_moves_its_line(visit):
    record = path_record(12)
    page = visit(record)
    points = record["path"]["points"]
    places = lines_across(page, "[opacity='0']")
    for number in (-1, 0):
        point = points[number]
        page.locator("#dims").fill(str(point["dims"]))
        page.wait_for_timeout(100)
        planned = page.locator("#planned").inner_text()
        assert f"Expected AUC on validation rows: {point['metric']:.4f} (" in planned
        assert "measured on the path with these fields" in planned
        assert lines_across(page, "[stroke-dasharray]") == [pytest.approx(places[number], abs=1)]


def test_the_nearest_point_of_the_path_is_named_where_no_point_has_these_fields(visit):
    record = path_record(12)
    points = record["path"]["points"]
    page = visit(record | {"path": {**record["path"], "points": [points[0], points[-1]]}})
    page.locator("#dims").fill(str(points[0]["dims"] - 1))
    planned = page.locator("#planned").inner_text()
    assert f"about {points[0]['metric']:.4f} (" in planned
    assert "as on the path with 12 fields, " in planned
    assert " of them dropped here." in planned


def test_worth_has_whiskers_in_the_ladder_and_is_what_the_table_is_sorted_by(visit):
    record = path_record(12)
    page = visit(record)
    assert page.locator("#ladder [data-field] u").count() == 12
    bars = page.evaluate(
        "[...document.querySelectorAll('#ladder [data-field]')].map((row) =>"
        " [row.querySelector('u'), row.querySelector('i')].map((e) => e.getBoundingClientRect())"
        ".map((box) => [box.left, box.right]))"
    )
    best, worst = bars[0], bars[-1]
    assert best[0][0] < best[1][1] < best[0][1]  # the bar ends inside its whisker
    assert worst[1][1] <= best[1][0] + 3  # a negative bar ends where positive ones begin
    assert page.locator("#table th[aria-sort=descending]").inner_text().startswith("Worth in nats")
    shown = texts(page, "#table td[data-key=worth]")
    assert all(" to " in text for text in shown)


def ties_and_groups():
    rows = [
        ("b", 8, 0.7, None),
        ("a", 8, 0.7, None),
        ("c", 4, 0.7, None),
        ("\U0001f680", 4, 0.7, None),
        ("\uffee", 4, 0.7, None),
    ]
    rows += [
        ("left", 16, 0.9, "pair"),
        ("right", 3, 0.1, "pair"),
        ("kept anyway", 5, 0.0, None),
        ("rest", 1, 0.2, None),
    ]
    fields = [
        {
            "name": name,
            "width": width,
            "score": score,
            "group": group,
            "protected": name == "kept anyway",
            "kept": score > 0.5,
        }
        for name, width, score, group in rows
    ]
    fields[2]["cost"] = 100.5
    return {"format": 1, "kind": "select", "method": "leap", "fields": fields}


@pytest.mark.parametrize(
    ("record", "budgets"),
    [
        (ties_and_groups(), (5, 9, 13, 17, 24, 30, 53)),
        (select_record(30, seed=1), (300, 777)),
        (path_record(30, seed=1), (300, 777)),
        (select_record(40, seed=2, method="shark"), (16, 500)),
    ],
    ids=["ties, groups and protected", "leap", "path", "shark"],
)
def test_the_download_is_what_the_library_selects(visit, tmp_path, record, budgets):
    page = visit(record)
    for budget in budgets:
        page.locator("#dims").fill(str(budget))
        with page.expect_download() as download:
            page.locator("#download").click()
        assert download.value.suggested_filename == "selection.json"
        download.value.save_as(tmp_path / "selection.json")
        expected = selection_of(record["fields"], dims=budget, method=record["method"])
        assert Selection.load(tmp_path / "selection.json", expected.fields) == expected
        assert json.loads((tmp_path / "selection.json").read_text())["settings"] == {"dims": budget}


def test_five_hundred_fields_render_within_two_seconds(visit):
    record = select_record(500, steps=400)
    milliseconds = [
        int(visit(record).locator("html").get_attribute("data-ready")) for _ in range(3)
    ]
    assert min(milliseconds) < 2_000


def test_colours_switch_and_a_picked_field_is_marked_everywhere(visit):
    page = visit(select_record(64))
    colour = "getComputedStyle(document.querySelector('#ladder [data-field] i')).backgroundColor"
    before = page.evaluate(colour)
    page.locator(".switch label", has_text="decision").click()
    assert page.evaluate(colour) != before
    assert page.locator(".legend:visible").inner_text().split("\n")[0] == "kept"
    page.locator("#ladder [data-field]").nth(3).click()
    assert page.locator("#ladder .marked").count() == page.locator("#table .marked").count() == 1
    page.locator("#boundary").click()
    assert page.evaluate("document.querySelector('#ladder').scrollTop") > 0


def test_the_ladder_is_walked_by_keys(visit):
    page = visit(select_record(12))
    page.locator("#ladder [data-field]").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#ladder [data-field]").nth(1).get_attribute("aria-selected") == "true"
    assert page.locator("#tip").is_visible()


@pytest.mark.parametrize("record", [select_record(64), path_record(64)], ids=["gates", "path"])
def test_dark_is_followed_and_can_be_switched_off_and_paper_is_always_white(visit, record):
    page = visit(record, color_scheme="dark")
    paper = "getComputedStyle(document.documentElement).getPropertyValue('--card')"
    assert page.evaluate(paper) == "#191f27"
    page.locator("#theme").click()
    assert page.evaluate(paper) == "#ffffff"
    page.locator("#theme").click()
    page.emulate_media(media="print")
    assert page.evaluate(paper) == "#ffffff"
    assert not page.locator(".bar").is_visible()
    page.set_viewport_size({"width": 688, "height": 1000})  # A4 less its margins
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    pdf = page.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000


def test_a_notebook_shows_the_page_in_a_frame(browser):
    page = browser.new_page()
    page.set_content(Report(select_record(12))._repr_html_())
    page.frame_locator("iframe").locator("html[data-ready]").wait_for()
    assert "can go" in page.frame_locator("iframe").locator("#headline").inner_text()
    page.close()
