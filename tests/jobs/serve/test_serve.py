"""`atlas serve`, live on loopback: the clients' own answers, limits, errors and the token."""

import json
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import atlas
from atlas.errors import InputError
from atlas.jobs.federation.client_models import Question, open_clients
from atlas.jobs.serve.batcher import Batcher, Busy
from atlas.jobs.serve.server import serve_run

TOKEN = "open sesame"
QUESTION = {"kind": "causal", "text": ["question"], "label": "answer", "metric": "exact_match"}
TASKS = {
    "two": {"text": ["text"], "labels": ["no", "yes"]},
    "three": {"text": ["first", "second"], "labels": ["small", "middle", "large"]},
    "short": {**QUESTION, "prompt": "Q: {question} A:"},
    "long": {**QUESTION, "prompt": "{question} ->"},
}


def rows(task):
    for i in range(24):
        if "kind" in TASKS[task]:
            yield {"question": f"how much is {i}?", "answer": "yes"}
        else:
            labels = TASKS[task]["labels"]
            label = labels[i % len(labels)]
            yield {"label": label, **dict.fromkeys(TASKS[task]["text"], f"{label} {i}")}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    named = {"a": "two", "b": "three", "c": "short", "d": "long"}
    return atlas.federate(
        {client: list(rows(task)) for client, task in named.items()},
        task=named,
        tasks=TASKS,
        backbone={"name": "tiny-causal", "max_length": 32, "max_new_tokens": 6},
        strategy="local",
        out=tmp_path_factory.mktemp("runs"),
        rounds=1,
        threads=1,
        alone=False,
        adapter={"blocks": 2, "rank": 3, "ranks": {"b": [1, 2, 3, 4]}},
        train={"lr": 0.05, "epochs": 6, "batch": 4},
    )


@pytest.fixture(scope="module")
def server(run):
    words = ["serve", str(run.path), "--port", "0", "--token", TOKEN, "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "atlas", *words], stdout=subprocess.PIPE, text=True
    )
    try:
        serving = json.loads(process.stdout.readline())
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=serving["address"], headers=headers, timeout=60) as client:
            client.serving = serving
            yield client
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


def test_it_says_who_there_is(server):
    assert server.serving["clients"] == ["a", "b", "c", "d"]
    assert server.serving["backbones"] == ["tiny-causal"], "one backbone for all of them"
    told = server.get("/clients").json()["clients"]
    assert [client["route"] for client in told] == ["/classify"] * 2 + ["/v1/completions"] * 2
    assert told[1]["text"] == ["first", "second"] and told[2]["prompt"] == "Q: {question} A:"
    assert [model["id"] for model in server.get("/v1/models").json()["data"]] == list("abcd")
    assert server.get("/health").json()["status"] == "ok"


def test_clients_are_classified_for_in_one_request(run, server):
    pair = ["small 1", "large 2"]
    inputs = ["yes 3", {"client": "b", "texts": pair}, "no 4", {"texts": ["yes 5"]}]
    told = server.post("/classify", json={"client": "a", "inputs": inputs}).json()["answers"]
    assert [answer["client"] for answer in told] == ["a", "b", "a", "a"]
    wanted = run.client("a").predict(["yes 3", "no 4", "yes 5"])
    wanted.insert(1, run.client("b").predict([pair])[0])
    for answer, own in zip(told, wanted, strict=True):
        assert answer["answer"] == own["answer"]
        assert answer["probabilities"] == pytest.approx(own["probabilities"], abs=1e-6)
    assert len(told[1]["probabilities"]) == 3


def test_completions_are_the_clients_own(run, server):
    prompts = ["Q: how much is 7? A:", "Q: how much is 12? A:"]
    body = {"model": "c", "prompt": prompts, "temperature": 0, "max_tokens": 6}
    told = server.post("/v1/completions", json=body).json()
    assert told["object"] == "text_completion" and told["model"] == "c"
    texts = [choice["text"].strip() for choice in told["choices"]]
    questions = ["how much is 7?", "how much is 12?"]
    assert texts == [answer["answer"] for answer in run.client("c").predict(questions)]
    assert told["usage"]["prompt_tokens"] == sum(map(len, prompts)), "its tokens are bytes"
    shorter = {**body, "max_tokens": 1, "prompt": prompts[0]}
    (choice,) = server.post("/v1/completions", json=shorter).json()["choices"]
    assert len(choice["text"]) <= 1 and choice["finish_reason"] == "length"
    first = texts[0][0]
    (choice,) = server.post("/v1/completions", json={**shorter, "stop": first}).json()["choices"]
    assert choice["text"].strip() == "" and choice["finish_reason"] == "stop"


def test_openais_own_client_is_understood(run, server):
    openai = pytest.importorskip("openai", reason="needs openai: pip install openai")
    client = openai.OpenAI(base_url=f"{server.serving['address']}/v1", api_key=TOKEN)
    assert [model.id for model in client.models.list()] == list("abcd")
    prompt = "Q: how much is 7? A:"
    told = client.completions.create(model="c", prompt=prompt, max_tokens=6, temperature=0)
    (own,) = run.client("c").predict(["how much is 7?"])
    assert told.choices[0].text.strip() == own["answer"]
    with pytest.raises(openai.NotFoundError, match="no such client"):
        client.completions.create(model="zz", prompt="x")
    with pytest.raises(openai.UnprocessableEntityError, match="greedy"):
        client.completions.create(model="c", prompt="x", temperature=0.5)
    stranger = openai.OpenAI(base_url=f"{server.serving['address']}/v1", api_key="wrong")
    with pytest.raises(openai.AuthenticationError, match="token"):
        stranger.models.list()


@pytest.mark.parametrize(
    ("route", "body", "status", "message"),
    [
        ("/classify", {"client": "nobody", "inputs": ["x"]}, 404, "no such client"),
        ("/classify", {"inputs": ["x"]}, 422, "client: missing"),
        ("/classify", {"client": "a", "inputs": []}, 422, "inputs"),
        ("/classify", {"client": "a", "inputs": ["x"] * 257}, 422, "inputs"),
        ("/classify", {"client": "a", "inputs": [["x", "y"]]}, 422, "reads 1: text"),
        ("/classify", {"client": "a", "inputs": ["  "]}, 422, "inputs.0.: text empty"),
        ("/classify", {"client": "a", "inputs": ["x"], "more": 1}, 422, "more"),
        ("/classify", {"client": "c", "inputs": ["x"]}, 422, "POST /v1/completions"),
        ("/v1/completions", {"model": "a", "prompt": "x"}, 422, "POST /classify"),
        ("/v1/completions", {"model": "zz", "prompt": "x"}, 404, "no such client"),
        ("/v1/completions", {"model": "c", "prompt": "x", "temperature": 1.0}, 422, "greedy"),
        ("/v1/completions", {"model": "c", "prompt": "x", "stream": True}, 422, "stream"),
        ("/v1/completions", {"model": "c", "prompt": "x", "max_tokens": 700}, 422, "1 to 511"),
        ("/v1/completions", {"prompt": "x"}, 422, "model"),
    ],
)
def test_bad_requests_are_told_what_is_wrong(server, route, body, status, message):
    found = server.post(route, json=body)
    assert found.status_code == status, found.text
    error = found.json()["error"]
    assert message.replace(".0.", "[0]") in error["message"] and error["type"]


def test_what_is_no_json_or_too_large_is_refused(server):
    found = server.post("/classify", content=b"{", headers={"Content-Type": "application/json"})
    assert found.status_code == 422 and "JSON" in found.json()["error"]["message"]
    assert server.post("/classify", content=b" " * 4_000_001).status_code == 413
    half = '{"client": "a", "inputs": ["\\ud800"]}'
    found = server.post("/classify", content=half, headers={"Content-Type": "application/json"})
    assert found.status_code == 422

    def parts():
        for _ in range(5):
            yield b" " * 1_000_000

    assert server.post("/classify", content=parts()).status_code == 413
    assert server.get("/health").status_code == 200, "it goes on"


def test_the_token_is_checked_everywhere_but_at_health(server):
    for wrong in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        with httpx.Client(base_url=server.serving["address"], headers=wrong) as stranger:
            assert stranger.get("/clients").status_code == 401
            assert stranger.get("/docs").status_code == 401
            assert stranger.post("/classify", json={}).status_code == 401
            assert stranger.get("/health").status_code == 200


def test_requests_at_the_same_time_share_passes(run, server):
    before = server.get("/health").json()
    names = ["a", "b"] * 20

    def ask(client):
        texts = "yes 1" if client == "a" else ["small 1", "large 2"]
        body = {"client": client, "inputs": [texts]}
        return server.post("/classify", json=body).json()["answers"][0]["client"]

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, names)) == names
    after = server.get("/health").json()
    assert after["requests"] - before["requests"] == 40
    assert after["passes"] - before["passes"] < 40


class Slow:
    """Answers when it is let; fails on a word."""

    def __init__(self):
        self.begun, self.free, self.seen = threading.Event(), threading.Event(), []

    def answer(self, asked):
        self.begun.set()
        self.free.wait(30)
        self.seen.append([question.texts[0] for question in asked])
        if any(question.texts == ("bad",) for question in asked):
            raise RuntimeError("a bad text")
        return [{"answer": question.texts[0]} for question in asked]


def test_what_waits_is_answered_together_and_a_failure_is_its_own():
    models = Slow()
    with Batcher(models, waiting=3) as batcher:
        first = batcher.ask([Question("a", ("one",))])
        assert models.begun.wait(30)
        others = [batcher.ask([Question("a", (word,))]) for word in ("two", "bad", "three")]
        with pytest.raises(Busy):
            batcher.ask([Question("a", ("four",))])
        models.free.set()
        assert first.result(30)[0]["answer"] == "one"
        assert [others[i].result(30)[0]["answer"] for i in (0, 2)] == ["two", "three"]
        with pytest.raises(RuntimeError, match="a bad text"):
            others[1].result(30)
    assert models.seen[:2] == [["one"], ["two", "bad", "three"]]


def test_stacks_are_shared_by_backbone_and_kind(run):
    models = open_clients(run.folder)
    assert [list(stack.tasks) for stack in models.stacks] == [["a", "b"], ["c", "d"]]
    assert models.stacks[0].model.backbone is models.stacks[1].model.backbone
    with pytest.raises(InputError, match="no such client"):
        models.stack_of("z")


def test_the_runs_page_is_there_too_and_no_others(run, server):
    assert server.get("/").headers["location"] == f"/run?run={run.path.name}"
    assert "/assets/live.js" in server.get("/run", params={"run": run.path.name}).text
    (listed,) = server.get("/api/runs").json()["runs"]
    assert listed["id"] == run.path.name and listed["state"] == "finished"
    shown = server.get("/api/document", params={"run": run.path.name}).json()
    assert shown["title"] == run.path.name
    shutil.copytree(run.path, run.path.parent / "another")
    found = server.get("/api/document", params={"run": "another"})
    assert found.status_code == 404 and "not shown here" in found.json()["error"]["message"]
    assert len(server.get("/api/runs").json()["runs"]) == 1


def test_a_browser_brings_the_token_in_the_address(server):
    place = server.serving["address"]
    with httpx.Client(base_url=place, follow_redirects=True) as browser:
        assert browser.get("/", params={"token": TOKEN}).status_code == 200
        assert browser.get("/clients").status_code == 200, "its cookie is enough from then on"


def test_a_taken_port_and_a_missing_library_are_told(run, server, monkeypatch):
    port = int(server.serving["address"].rsplit(":", 1)[1])
    with pytest.raises(InputError, match=f"--host 127.0.0.1 --port {port}: "):
        serve_run(run.folder, "127.0.0.1", port, None, print)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(InputError, match="atlas-personal\\[ui\\]"):
        serve_run(run.folder, "127.0.0.1", 0, None, print)
