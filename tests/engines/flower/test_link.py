"""The link to a node's trainer: the token, who may read it, what is refused."""

import json
import os
import stat
import subprocess
import sys
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client

import pytest

from atlas.engines.flower import link as links
from atlas.engines.flower.link import Address, ask_trainer, listen
from atlas.engines.flower.records import Parcel


@pytest.fixture
def trainer(tmp_path):
    """One in a thread of this process, which turns payloads round."""

    def answer(parcel):
        assert parcel.facts["node-process"] == os.getppid()
        return Parcel({"failed": [""]}, [payload[::-1] for payload in parcel.payloads])

    given = (tmp_path, os.getpid(), answer)
    threading.Thread(target=listen, args=given, daemon=True).start()
    while Address.read(tmp_path) is None:
        time.sleep(0.01)
    return tmp_path


def test_a_parcel_goes_there_and_back(trainer):
    large = os.urandom(3 * 2**20)
    found = ask_trainer(trainer, Parcel({"client": "a", "after": 3}, [b"abc", b"", large]))
    assert found.facts == {"failed": [""]}
    assert list(found.payloads) == [b"cba", b"", large[::-1]]


def test_only_the_owner_reads_the_token_and_nobody_gets_in_without(trainer):
    mode = stat.S_IMODE((trainer / links.ADDRESS_FILE).stat().st_mode)
    assert mode == 0o600
    port = Address.read(trainer).port
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        Client(("127.0.0.1", port), authkey=b"guess")
    with Address.read(trainer).connect() as door:
        door.send_bytes(b"\xff not json")
    with Address.read(trainer).connect() as door:
        door.send_bytes(json.dumps({"facts": [], "payloads": 10**9}).encode())
    assert ask_trainer(trainer, Parcel({}, [b"ab"])).payloads == [b"ba"]  # it still answers


def test_a_trainer_that_cannot_start_is_told(tmp_path):
    (tmp_path / "node.yaml").write_text("clients: {}\n")
    with pytest.raises(RuntimeError, match="could not be started"):
        ask_trainer(tmp_path, Parcel({"tasks": []}, []))
    assert "node.yaml" in (tmp_path / links.LOG_FILE).read_text()


def test_a_client_app_starts_without_torch():
    code = "import sys, atlas.engines.flower.client_app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
