"""The live page's answers: what is listed, who may ask, which paths are refused."""

import json

import pytest

from atlas.errors import InputError
from atlas.report.read.catalogue import Catalogue, find_below, progress_of
from atlas.report.read.source import read_run
from tests.report.folders import make_federation

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient  # noqa: E402

from atlas.report.live.access import Access  # noqa: E402
from atlas.report.live.app import create_app, page_router  # noqa: E402

HERE = "http://127.0.0.1"


def client(root, access=None, **more):
    app = create_app(access or Access.to("127.0.0.1"), [page_router(root, between=0.01)])
    return TestClient(app, base_url=HERE, **more)


def test_runs_are_listed_with_their_state(tmp_path):
    make_federation(tmp_path / "done")
    make_federation(tmp_path / "half", rounds=1, finished=False)
    make_federation(tmp_path / "s-compare-1234" / "atlas-0" / "demo")
    (tmp_path / "empty").mkdir()
    rows = client(tmp_path).get("/api/runs").json()["runs"]
    found = {row["id"]: (row["state"], row["done"], row["rounds"]) for row in rows}
    assert found == {
        "done": ("finished", 3, 3),
        "half": ("stopped", 1, 3),
        "s-compare-1234/atlas-0/demo": ("finished", 3, 3),
    }
    done = next(row for row in rows if row["id"] == "done")
    assert done["score"] == pytest.approx(76.25) and done["gain"] == pytest.approx(3.75)


def test_a_list_is_read_again_only_where_something_changed(tmp_path):
    path = make_federation(tmp_path / "run")
    catalogue = Catalogue(tmp_path)
    first = catalogue.rows()
    assert catalogue.rows()[0] is first[0]
    (path / "summary.json").unlink()
    assert catalogue.rows()[0]["state"] == "stopped"


@pytest.mark.parametrize(
    "name",
    [
        "..",
        "../x",
        "run/../run",
        "/etc",
        "",
        ".",
        "run/",
        "a/b/c/d",
        "ru n",
        "run\x00",
        "~",
        ".hidden",
    ],
)
def test_ids_lead_nowhere_else(tmp_path, name):
    make_federation(tmp_path / "root" / "run")
    make_federation(tmp_path / "x")
    with pytest.raises(InputError):
        find_below(tmp_path / "root", name)
    asked = client(tmp_path / "root")
    for route in ("document", "follow"):
        assert asked.get(f"/api/{route}", params={"run": name}).status_code == 404


def test_links_out_of_the_folder_are_refused(tmp_path):
    make_federation(tmp_path / "secret")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "run").symlink_to(tmp_path / "secret")
    assert client(tmp_path / "root").get("/api/document?run=run").status_code == 404


def test_the_page_only_reads(tmp_path):
    path = make_federation(tmp_path / "run")
    before = sorted(p.name for p in path.iterdir())
    asked = client(tmp_path)
    for verb in ("post", "put", "delete", "patch"):
        assert getattr(asked, verb)("/api/runs").status_code == 405
    assert asked.get("/api/document?run=run").status_code == 200
    assert asked.get("/assets/../page.py").status_code == 404
    assert asked.get("/openapi.json").status_code == 404
    assert sorted(p.name for p in path.iterdir()) == before


def test_this_machine_needs_no_token_but_its_own_name(tmp_path):
    asked = client(tmp_path)
    answer = asked.get("/")
    assert (
        answer.status_code == 200
        and "default-src 'none'" in answer.headers["content-security-policy"]
    )
    assert asked.get("/", headers={"host": "evil.example"}).status_code == 421
    assert asked.get("/", headers={"host": "127.0.0.1.evil.example"}).status_code == 421
    assert asked.get("/", headers={"host": "localhost:8400"}).status_code == 200


def test_elsewhere_the_token_is_asked_for(tmp_path):
    access = Access.to("0.0.0.0")
    assert access.token and len(access.token) >= 24
    for path in ("/", "/api/runs", "/assets/live.js"):
        assert client(tmp_path, access).get(path).status_code == 401
        assert client(tmp_path, access).get(f"{path}?token=wrong").status_code == 401
        bearer = {"authorization": f"Bearer {access.token}"}
        assert client(tmp_path, access).get(path, headers=bearer).status_code == 200
    asked = client(tmp_path, access)
    first = asked.get(f"/?token={access.token}")
    assert "HttpOnly" in first.headers["set-cookie"]
    assert asked.get("/api/runs").status_code == 200, "the cookie is enough from then on"
    assert Access.to("127.0.0.1").token is None and Access.to("::1").token is None
    assert Access.to("127.0.0.1", "given").token == "given"
    assert Access("0.0.0.0", "t").address(80) == "http://127.0.0.1:80/?token=t"
    assert Access("::1", None).base(80) == "http://[::1]:80"
    assert len(Access.to("0.0.0.0", "").token) > 20, "an empty token is none"
    assert Access.to("0.0.0.0").token != Access.to("0.0.0.0").token
    assert Access.to("localhost").token is None and Access.to("example.org").token


def test_any_token_can_be_kept_as_a_cookie(tmp_path):
    access = Access("0.0.0.0", "open; ses\u00e4me=1")
    asked = client(tmp_path, access)
    assert asked.get(access.address(80).removeprefix("http://127.0.0.1:80")).status_code == 200
    assert asked.get("/api/runs").status_code == 200


def test_errors_have_one_form(tmp_path):
    make_federation(tmp_path / "run")
    asked = client(tmp_path)
    found = [asked.get("/api/document?run=x"), asked.get("/nowhere"), asked.get("/api/document")]
    found += [asked.get("/", headers={"host": "evil.example"})]
    found += [
        client(tmp_path, Access("0.0.0.0", "t")).get("/"),
        asked.post("/", content=b" " * 4_000_001),
    ]
    assert [answer.status_code for answer in found] == [404, 404, 422, 421, 401, 413]
    for answer in found:
        assert answer.json()["error"]["message"] and answer.json()["error"]["type"]


def test_one_run_can_be_shown_alone(tmp_path):
    for name in ("run", "secret"):
        make_federation(tmp_path / name)
    app = create_app(Access.to("127.0.0.1"), [page_router(tmp_path, only="run")])
    asked = TestClient(app, base_url=HERE)
    assert [row["id"] for row in asked.get("/api/runs").json()["runs"]] == ["run"]
    for route in ("document", "follow"):
        assert asked.get(f"/api/{route}?run=run").status_code == 200
        assert asked.get(f"/api/{route}?run=secret").status_code == 404
    assert asked.get("/").url.path == "/run"


def test_a_follower_hears_progress_and_the_end(tmp_path):
    make_federation(tmp_path / "run")
    text = client(tmp_path).get("/api/follow?run=run").text
    events = [part.split("\n") for part in text.strip().split("\n\n")]
    assert [lines[0] for lines in events] == ["event: progress", "event: end"]
    told = json.loads(events[0][1].removeprefix("data: "))
    assert (told["done"], told["rounds"], told["state"]) == (3, 3, "finished")


def test_time_left_follows_the_last_rounds(tmp_path):
    import os
    from datetime import UTC, datetime

    path = make_federation(tmp_path / "run", rounds=1, finished=False)
    assert progress_of(read_run(path))["left"] is None, "nobody works on it"
    (path / ".lock.pid").write_text(str(os.getpid()))
    now = datetime.now(UTC).isoformat()
    lines = [json.loads(line) for line in (path / "events.jsonl").read_text().splitlines()]
    lines[-1] |= {"seconds": 100.0, "time": now}
    (path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = progress_of(read_run(path))
    assert told["state"] == "running" and 150 < told["left"] <= 200


def test_a_missing_extra_is_told_with_its_command(monkeypatch):
    import sys

    from atlas.report.live.serve import need_server

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(InputError, match=r"pip install 'atlas-personal\[ui\]'"):
        need_server()
