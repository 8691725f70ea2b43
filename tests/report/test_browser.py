"""Reports and the live page in a real browser: what a reader sees, without a word of complaint."""

import json
import threading
import time

import pytest

from atlas.report.html.page import write_report
from atlas.runs.events import EventLog
from atlas.runs.folder import write_summary
from tests.browser import needs_chromium, open_browser
from tests.report.folders import make_federation, one_round, summary_of
from tests.report.test_report_document import HOSTILE

pytestmark = needs_chromium()
READY = "(document.querySelector('#page') || {dataset: {}}).dataset.ready === 'yes'"


@pytest.fixture(scope="module")
def browser():
    with open_browser() as page:
        yield page


@pytest.fixture
def page(browser):
    browser.look()
    browser.complaints.clear()
    browser.asked.clear()
    yield browser
    assert browser.complaints == []


@pytest.fixture
def served(tmp_path):
    """The live page over a folder, on a port of its own; returns its address and the folder."""
    uvicorn = pytest.importorskip("uvicorn")
    from atlas.report.live.access import Access
    from atlas.report.live.app import create_app, page_router

    app = create_app(Access.to("127.0.0.1"), [page_router(tmp_path, between=0.05)])
    config = uvicorn.Config(
        app, port=0, log_level="warning", ws="none", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    end = time.monotonic() + 30
    while not server.started:
        assert time.monotonic() < end and thread.is_alive()
        time.sleep(0.02)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", tmp_path
    server.should_exit = True
    thread.join(30)


def count(what):
    return f"document.querySelectorAll({json.dumps(what)}).length"


def words(what):
    return f"(document.querySelector({json.dumps(what)}) || {{}}).textContent"


def test_a_report_draws_every_chart_and_asks_for_nothing(page, tmp_path):
    report = write_report([make_federation(tmp_path / "run")])
    page.open(report.as_uri(), READY)
    page.wait(f"{count('figure svg[role=img]')} === {count('figure')} && {count('figure')} > 15")
    assert page.value(f"{count('section')}") == 16
    assert page.value("[...document.querySelectorAll('svg[role=img]')].every(s => s.ariaLabel)")
    assert page.value(words("section#clients tbody tr td.up")) == "+10.0"
    assert [url for url in page.asked if not url.startswith(("file:", "data:"))] == []


def test_charts_answer_a_reader(page, tmp_path):
    page.open(write_report([make_federation(tmp_path / "run")]).as_uri(), READY)
    page.wait(f"{count('#mixing input[type=range]')} === 1")
    slide = "const s = document.querySelector('#mixing input'); s.value = 0; "
    page.value(slide + "s.dispatchEvent(new Event('input'))")
    assert page.value(words("#mixing .slider span")) == "round 1"
    before = page.value(count("#scores path[stroke]"))
    page.value("document.querySelector('#scores .legend button').click()")
    assert page.value(count("#scores path[stroke]")) < before
    page.value("document.querySelector('#scores details.numbers summary').click()")
    page.wait(f"{count('#scores details.numbers tbody tr')} === 3")
    page.value("document.querySelector('button.theme').click()")
    assert page.value("document.documentElement.dataset.theme") == "light"


@pytest.mark.parametrize(("width", "phone"), [(390, True), (1280, False)])
def test_nothing_sticks_out_of_the_screen(page, tmp_path, width, phone):
    report = write_report([make_federation(tmp_path / "run", tasks=HOSTILE)])
    page.look(width, 900, phone=phone, dark=phone)
    page.open(report.as_uri(), READY)
    page.wait(f"{count('figure svg[role=img]')} === {count('figure')}")
    assert page.value("document.documentElement.scrollWidth") <= width


def test_hostile_names_are_words_and_nothing_else(page, tmp_path):
    page.open(write_report([make_federation(tmp_path / "run", tasks=HOSTILE)]).as_uri(), READY)
    page.wait(f"{count('#clients svg[role=img]')} === 1")
    assert page.value(count("img")) == 0
    shown = page.value("document.querySelector('#clients').innerText")
    for text in ("<img src=x onerror=alert(1)>", "\\x1b[31mred\\x1b[0m", "[bold red]markup[/]"):
        assert text in shown


def test_the_page_lists_runs_also_a_broken_one_and_compares_two(page, served):
    address, root = served
    make_federation(root / "one")
    make_federation(root / "two", settings=["rounds=7"])
    (root / "broken").mkdir()
    (root / "broken" / "config.yaml").write_bytes(b"\xff{{{")
    (root / "broken" / "events.jsonl").write_text('{"event": "started", "rounds": "x"}\n{"ev')
    (root / "notes.txt").write_text("no run")
    page.open(address, f"{count('#list tbody tr')} === 3")
    for name in ("one", "two"):
        page.value(f"document.querySelector('tr[data-run={name}] input').click()")
    assert page.value(words("#compare")) == "Compare 2 runs"
    page.value("document.querySelector('#compare').click()")
    page.wait(f"location.pathname === '/run' && {READY} && {count('#overview tbody tr')} === 2")
    assert page.value(words("h1")) == "one, two"
    page.open(f"{address}/run?run=broken", READY)
    assert "config.yaml" in page.value(words(".missing"))
    page.open(f"{address}/run?run=one", READY)
    page.wait("document.querySelector('#strip').dataset.state === 'finished'")
    assert page.value(words("#clients tbody tr td.up")) == "+10.0"


def test_a_run_that_is_not_there_is_told(page, served):
    address, _ = served
    page.open(
        f"{address}/run?run=nobody", "document.querySelector('#page').dataset.ready === 'failed'"
    )
    assert "there is no run 'nobody'" in page.value(words("#page"))
    assert page.complaints and all("404" in told for told in page.complaints)
    page.complaints.clear()


def test_a_run_is_followed_to_its_end(page, served):
    import os

    address, root = served
    path = make_federation(root / "going", rounds=1, finished=False)
    (path / ".lock.pid").write_text(f"{os.getpid()}\n")
    page.open(f"{address}/run?run=going", READY)
    page.wait("document.querySelector('#strip').dataset.state === 'running'")
    assert "round 1 of 3" in page.value(words("#strip"))
    assert "about 3" in page.value(words("#strip .left")) or "left" in page.value(words("#strip"))
    page.wait(f"{count('#scores circle, #scores path[transform]')} > 0")
    with EventLog(path / "events.jsonl") as log:
        for name, fields in one_round(2):
            log.log(name, fields)
        log.log("refused", {"round": 2, "client": "a-1", "reason": "<b>norm</b>"})
    page.wait("document.querySelector('#strip').textContent.includes('round 2 of 3')")
    assert "<b>norm</b>" in page.value(words("#strip"))
    page.wait(f"{count('section#trouble')} === 1")
    with EventLog(path / "events.jsonl") as log:
        for name, fields in one_round(3):
            log.log(name, fields)
    (path / ".lock.pid").unlink()
    write_summary(path / "summary.json", summary_of())
    page.wait("document.querySelector('#strip').dataset.state === 'finished'")
    page.wait(f"{count('section#clients')} === 1")
    assert "3.8 points more" in page.value(words(".headline"))
