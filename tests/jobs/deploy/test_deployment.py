"""Three nodes on this machine, with TLS and node keys, by Flower's own processes."""

import socket
import ssl

import pytest

from atlas.jobs.deploy import serve as serving
from atlas.jobs.deploy.operate import check
from atlas.runs.events import read_events
from atlas.runs.folder import RunFolder
from tests.jobs.deploy.nodes import CLIENTS, Nodes, new_run, settings
from tests.jobs.deploy.processes import Deployment, summary_of

SHORT = ["strategy=fedavg", "alone=false", "rounds=2", "flower.wait=150"]
LONG = ["strategy=atlas", "keep_best=true", "train.keep_moments=true", "rounds=5",
        "flower.wait=150"]  # fmt: skip


def undisturbed(tmp_path, monkeypatch, more):
    """What a run comes to when nothing happens to anybody."""
    with monkeypatch.context() as patched:
        patched.setattr(serving, "replace", lambda post, **changes: post)
        patched.setattr("atlas.engines.flower.roll.replace", lambda post, **changes: post)
        folder = new_run(settings(*more), tmp_path / "wanted")
        return serving.serve(Nodes(tmp_path / "quiet"), folder).summary["adapters_sha256"]


def test_three_nodes_make_a_run_though_a_trainer_dies_and_strangers_are_refused(
    tmp_path, monkeypatch
):
    with Deployment(tmp_path / "d", settings(*SHORT)) as deployment:
        assert check(deployment.folder)["ready"]
        stranger = deployment.stranger()
        run = deployment.run()
        deployment.reach(1)
        deployment.kill_trainer(CLIENTS[0])
        summary = summary_of(run)
        refused(deployment)
        log = (deployment.folder / "stranger" / "supernode.log").read_text()
        assert stranger.wait(20) != 0, log
        assert len(check(deployment.folder)["nodes"]) == 3
    assert summary["failures"] == summary["refused"] == []
    assert summary["adapters_sha256"] == undisturbed(tmp_path, monkeypatch, SHORT)
    assert not check(deployment.folder)["port"]


def refused(deployment):
    """Whoever speaks without TLS, or does not know the server's authority, gets nothing."""
    door = (deployment.settings.host, deployment.settings.port)
    with socket.create_connection(door, timeout=10) as plain:
        plain.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: here\r\n\r\n")
        assert plain.recv(100) == b""
    with socket.create_connection(door, timeout=10) as raw, pytest.raises(ssl.SSLError):
        ssl.create_default_context().wrap_socket(raw, server_hostname="localhost")


@pytest.mark.slow
def test_a_killed_node_comes_back_with_its_own_state(tmp_path):
    more = [*LONG, "flower.deadline=100"]
    with Deployment(tmp_path / "d", settings(*more)) as deployment:
        run = deployment.run()
        deployment.reach(2, event="round_started")
        deployment.kill(f"nodes/{CLIENTS[1]}")
        deployment.reach(2)
        deployment.start(f"nodes/{CLIENTS[1]}/start.sh")
        summary = summary_of(run, 900)
        states = sorted(
            p.name for p in deployment.folder.glob(f"nodes/{CLIENTS[1]}/state/*/*/[0-9]*")
        )
    assert summary["rounds"] == 5
    assert {entry["client"] for entry in summary["failures"]} == {CLIENTS[1]}
    events = read_events(RunFolder(deployment.folder / "runs" / "demo").events)
    fitted = {e["round"] for e in events if e["event"] == "fitted" and e["client"] == CLIENTS[1]}
    assert {1, 5} <= fitted
    assert fitted != {1, 2, 3, 4, 5}
    assert states[-1] == "0005"
    assert set(summary["score"]["clients"]) == set(CLIENTS)


@pytest.mark.slow
def test_a_killed_server_resumes_and_ends_as_if_nothing_had_happened(tmp_path, monkeypatch):
    with Deployment(tmp_path / "d", settings(*LONG)) as deployment:
        run = deployment.run()
        deployment.reach(3, event="fitted")
        deployment.kill("server")
        _, err = run.communicate(timeout=120)
        assert run.returncode == 1
        assert "--resume demo" in err
        deployment.start("server/start.sh")
        summary = summary_of(deployment.run("--resume", "demo"), 900)
    assert summary["failures"] == []
    assert summary["adapters_sha256"] == undisturbed(tmp_path, monkeypatch, LONG)
    events = [e["event"] for e in read_events(deployment.folder / "runs/demo/events.jsonl")]
    assert events.count("resumed") == 1
    assert events.count("round_finished") == 5
