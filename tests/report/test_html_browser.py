"""The HTML report in a real browser: it draws, is silent, filters and links, and nothing from a log runs in it."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import EventLog
from playwright.sync_api import sync_playwright

from staleness_audit import audit
from staleness_audit.report.html import write_report
from staleness_audit.simulate.page import write_page

SAMPLES = Path(__file__).parents[2] / "sample_traces"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

if CHROMIUM is None and not os.environ.get("CI"):
    pytest.skip(
        "NO BROWSER: the HTML report is not tested; install Chromium (apt-get install chromium)",
        allow_module_level=True,
    )

MARKUP = '"><img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'
HOSTILE = (
    MARKUP,
    "</script><script>window.pwned=1</script>",
    "<!--<script>window.pwned=1//",
    '<a href="javascript:window.pwned=1">click</a>',
    "{{ 7*7 }}{% raw %}",
    "%{customdata}<br><b>bold</b>",
    "a\u2028b\u202ec\x1b[31m\x00",
    "x" * 3000,
)


@pytest.fixture(scope="session")
def browser():
    assert CHROMIUM, "no Chromium: install it (apt-get install chromium)"
    with sync_playwright() as playwright:
        # Root, as in most CI, needs --no-sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def broken(tmp_path_factory):
    """A report of a recorded run that broke its bound: 7 violations proven, 9 possible, times, drops."""
    folder = tmp_path_factory.mktemp("broken")
    result = audit(SAMPLES / "prime-rl/queue_unenforced_bound1/run", tables=folder / "tables", worst=8)
    write_report(result, folder / "report.html")
    return folder / "report.html", result


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    """A report of a run in which every text from the logs attacks the page: each trajectory violates the bound of 0."""
    folder = tmp_path_factory.mktemp("hostile")
    run = folder / "<img src=x onerror=window.pwned=1>{{7*7}}"
    log = EventLog(run / "a.staleness.jsonl", framework=MARKUP, bound=0, config={"key" + MARKUP: MARKUP})
    for index, text in enumerate(HOSTILE):
        name = f"{index} {text}"
        log.add("admitted", trajectory_id=name, group_id=f"g{name}", ts=index)
        log.add("span", trajectory_id=name, tokens=5 + index, version=0, ts=index + 1.0, worker=text)
        log.add("finished", trajectory_id=name, ts=index + 1.0)
        log.add("trained", trajectory_id=name, step=1, ts=50.0)
        log.add("span", trajectory_id=f"dropped {name}", tokens=7, version=0, ts=index + 1.0)
        log.add("dropped", trajectory_id=f"dropped {name}", reason=f"other:{text}", step=1, ts=index + 2.0)
    log.add("step", step=1, version=1, started=50.0, ended=60.0)
    log.close()
    result = audit(run, tables=folder / "tables", worst=20)
    assert result.verdict == "fail"
    write_report(result, folder / "report.html")
    return folder / "report.html"


class Visit:
    """A page that was opened in a context of its own, and everything that it said or asked for."""

    def __init__(self, browser, file: Path, fragment: str = "", **options) -> None:
        size = {"viewport": {"width": 1200, "height": 900}, "reduced_motion": "reduce"}
        self.context = browser.new_context(**{**size, **options})
        self.context.set_default_timeout(20_000)
        self.page = page = self.context.new_page()
        self.noise: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.noise.append(message.text))
        page.on("pageerror", lambda error: self.noise.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri() + fragment)

    def draw_all(self) -> None:
        """Draw what else is drawn only when it is scrolled to, as printing does."""
        self.page.evaluate("dispatchEvent(new Event('beforeprint')); dispatchEvent(new Event('afterprint'))")
        whole = "plot.dataset.drawn && plot.querySelector('.main-svg').clientWidth === plot.clientWidth"
        self.page.wait_for_function(f"() => [...document.querySelectorAll('.plot')].every(plot => {whole})")

    def unfold(self) -> None:
        """Open everything that is folded."""
        self.page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")


@pytest.fixture(scope="session")
def shared(browser, broken):
    """The report of the broken run, opened once and drawn whole; tests leave it as it may be."""
    opened = Visit(browser, broken[0])
    opened.draw_all()
    yield opened
    opened.context.close()


@pytest.fixture
def visit(browser):
    """Return a function that opens a page of its own: ``visit(file, fragment, **options of the context)``."""
    opened = []

    def open_page(file: Path, fragment: str = "", **options) -> Visit:
        opened.append(Visit(browser, file, fragment, **options))
        return opened[-1]

    yield open_page
    for each in opened:
        each.context.close()


def serious(page, **options) -> list[str]:
    """What axe finds of impact *serious* or *critical* outside the drawings (images with an alternative text)."""
    everything = {"resultTypes": ["violations"], **options}
    found = Axe().run(page, {"exclude": [[".main-svg"]]}, everything).response["violations"]
    return [
        f"{item['id']}: {node['html'][:160]}"
        for item in found
        if item["impact"] in ("serious", "critical")
        for node in item["nodes"]
    ]


def test_the_page_draws_everything_says_nothing_and_asks_for_nothing(shared, broken):
    page = shared.page
    assert shared.noise == []
    assert [url for url in shared.requests if not url.startswith(("data:", "blob:"))] == [broken[0].as_uri()]
    drawn = dict(
        page.eval_on_selector_all(
            ".plot", "plots => plots.map(plot => [plot.id, plot.querySelectorAll('.main-svg path').length])"
        )
    )
    assert {name.removesuffix("-plot") for name in drawn} >= {
        *("staleness-steps", "staleness-tokens", "staleness-trajectories", "staleness-parts", "timeline-figure"),
        *("waste-flow", "waste-steps", "throughput-rates", "throughput-trainer"),
    }
    assert all(paths > 3 for paths in drawn.values()), drawn
    words = page.eval_on_selector_all(".plot", "plots => plots.map(plot => plot.getAttribute('aria-label').length)")
    assert min(words) > 20
    headings = page.eval_on_selector_all(
        "section > h1, section > h2:not(.small)", "all => all.map(item => item.textContent.trim().split(' ')[0])"
    )
    assert headings == ["✗", "How", "How", "Which", "Where", "How", "What", "Glossary"]


def test_axe_finds_nothing_serious(shared):
    # One of each kind of fold is enough.
    for fold in (".story", ".log", ".numbers"):
        shared.page.locator(fold).first.evaluate("fold => fold.open = true")
    assert serious(shared.page) == []
    shared.page.emulate_media(color_scheme="dark")
    assert serious(shared.page, runOnly={"type": "rule", "values": ["color-contrast"]}) == []
    shared.page.emulate_media(color_scheme="light")


def test_tables_are_filtered_by_text_and_by_kind(shared, broken):
    page, listed = shared.page, broken[1].data["violations"]["worst"]
    rows = page.locator("#worst tbody tr:visible")
    proven = sum(row["proven"] for row in listed)
    assert rows.count() == len(listed) > proven > 0
    page.get_by_role("button", name="proven", exact=True).click()
    assert rows.count() == proven
    page.locator("[data-filter-for=worst] input").fill(listed[1]["trajectory_id"][:12].upper())
    assert rows.count() == 1
    assert page.locator("#worst-count").inner_text() == f"1 of {len(listed)} rows"
    page.locator("[data-filter-for=worst] input").fill("no such thing")
    assert rows.count() == 0
    page.locator("[data-filter-for=worst] input").fill("")


def test_a_click_on_a_marked_violation_leads_to_its_story(shared, broken):
    page = shared.page
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = false)")
    page.locator("#staleness-steps-plot .scatterlayer .trace:last-child .points path").first.click(force=True)
    page.wait_for_function("() => location.hash.startsWith('#violation-')")
    first_step = min(row["step"] for row in broken[1].data["violations"]["worst"] if row["proven"])
    story = page.locator(page.evaluate("location.hash"))
    assert story.evaluate("story => story.open")
    assert story.locator("> summary").inner_text().endswith(f"in step {first_step}")
    assert 0 <= story.bounding_box()["y"] < 200


def test_a_link_unfolds_the_story_that_it_names(visit, broken):
    anchors = re.findall(r'class="story" id="(violation-[0-9a-f]{10})"', broken[0].read_text(encoding="utf-8"))
    page = visit(broken[0], f"#{anchors[2]}").page
    story = page.locator(f"#{anchors[2]}")
    assert story.evaluate("story => story.open")
    assert not page.locator(f"#{anchors[1]}").evaluate("story => story.open")
    assert 0 <= story.bounding_box()["y"] < 200
    story.get_by_role("button", name="Copy link").click()
    copied = "id => document.querySelector(`#${id} [data-copy]`).textContent !== 'Copy link'"
    page.wait_for_function(copied, arg=anchors[2])
    assert page.url.endswith(f"#{anchors[2]}")


def test_dark_follows_the_system_the_toggle_and_paper_and_so_do_the_figures(shared):
    page = shared.page
    background = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('#staleness-steps-plot .xtick text')).fill"
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => {ink} === 'rgb(228, 234, 240)'")
    assert page.evaluate(background) == "rgb(16, 21, 27)"
    # Paper is white.
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_function(f"() => {ink} === 'rgb(27, 33, 41)'")
    assert page.evaluate("document.querySelector('#staleness-steps-plot .main-svg').width.baseVal.value") == 680
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.wait_for_function(f"() => {ink} === 'rgb(228, 234, 240)'")
    page.get_by_role("button", name="Theme: automatic").click()
    page.wait_for_function(f"() => {ink} === 'rgb(27, 33, 41)'")
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Theme: light").click()
    page.wait_for_function(f"() => {ink} === 'rgb(228, 234, 240)'")
    page.get_by_role("button", name="Theme: dark").click()
    assert page.locator("#theme").inner_text() == "Theme: automatic"


def test_the_timeline_zooms_by_buttons_and_keeps_its_place_in_another_theme(shared):
    page = shared.page
    reach = "document.getElementById('timeline-figure-plot')._fullLayout.xaxis.range"
    low, high = page.evaluate(reach)
    page.get_by_role("button", name="Zoom in").click()
    page.wait_for_function(f"() => {reach}[1] - {reach}[0] < {(high - low) * 0.6}")
    zoomed = page.evaluate(reach)
    assert zoomed[1] - zoomed[0] == pytest.approx((high - low) / 2)
    drawn_in = "getComputedStyle(document.querySelector('#timeline-figure-plot .xtick text')).fill"
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"() => {drawn_in} === 'rgb(228, 234, 240)'")
    assert page.evaluate(reach) == pytest.approx(zoomed)
    page.emulate_media(color_scheme="light")


def test_text_from_logs_is_shown_and_never_runs_and_fits_on_a_phone(visit, hostile, tmp_path):
    """Twice: on a phone, and without the Content-Security-Policy, so that the escaping alone has to hold."""
    bare = tmp_path / "bare.html"
    bare.write_text(
        re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", hostile.read_text(encoding="utf-8")),
        encoding="utf-8",
    )
    assert "Content-Security-Policy" not in bare.read_text(encoding="utf-8")[:2000]
    phone = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
    for file, options in ((hostile, phone), (bare, {})):
        opened = visit(file, **options)
        page = opened.page
        opened.draw_all()
        opened.unfold()
        for figure in ("staleness-steps", "timeline-figure"):
            page.locator(f"#{figure}-plot .scatterlayer .points path").last.hover(force=True)
            page.wait_for_selector(f"#{figure}-plot .hoverlayer text")
        # What hovers is the life's name as text (the last one's is cut).
        assert "xxxx" in page.locator("#timeline-figure-plot .hoverlayer").text_content()
        assert page.evaluate("window.pwned") is None
        assert opened.noise == []
        assert page.locator("img, iframe, object, embed, image, [onerror], a[href^='javascript']").count() == 0
        assert page.locator("a[href*='://']").count() == 0
        assert page.evaluate("document.scripts.length") == 4
        assert page.locator("#worst tbody tr").count() == len(HOSTILE)
        shown = page.locator("#worst").inner_text()
        assert shown.count("<script>window.pwned=1</script>") >= 2
        assert "{{ 7*7 }}" in shown
        assert "6 a\ufffdb\ufffdc\ufffd[31m" in shown
        if options:
            assert page.evaluate("[document.documentElement.scrollWidth, visualViewport.width]") == [390, 390]


def test_a_narrow_window_needs_no_sideways_scrolling(shared):
    page = shared.page
    page.set_viewport_size({"width": 390, "height": 844})
    shared.unfold()
    # Figures are drawn anew for the width a moment later.
    page.wait_for_function("() => document.documentElement.scrollWidth <= 390")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    # A caption is as wide as its table, but what it says can be read without moving the table sideways.
    ends = page.eval_on_selector_all(
        ".scroll caption span",
        "spans => spans.filter(each => each.offsetParent).map(each => each.getBoundingClientRect().right)",
    )
    assert ends and max(ends) < 390
    assert shared.noise == []


def test_the_page_of_a_sweep_is_as_sealed_and_as_readable(visit, tmp_path):
    """Two policies at one bound, with a hostile workload and settings."""
    rows = [
        {
            **{
                "policy": policy,
                "bound": 1,
                "depth": 1,
                "workload": MARKUP,
                "settings": MARKUP,
                "length_ratio": 1.0,
                "stalled": False,
            },
            **{"trained_tokens_per_s": 100.0 * number, "staleness_mean": float(number), "staleness_max": number},
            **{"trainer_waiting_share": 0.5, "wasted_share": 0.1, "beyond_share": 0.25},
        }
        for number, policy in enumerate(("areal", "verl:drop"), start=1)
    ]
    write_page(pl.DataFrame(rows), tmp_path / "sweep.html")
    opened = visit(tmp_path / "sweep.html", viewport={"width": 390, "height": 844}, color_scheme="dark")
    opened.draw_all()
    page = opened.page
    assert opened.noise == [] and opened.requests == [(tmp_path / "sweep.html").as_uri()]
    assert page.evaluate("window.pwned") is None and MARKUP in page.inner_text("main")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert page.locator(".plot .main-svg").count() >= 3
    assert serious(page) == []
