"""Memory and life of process trees."""

import os
import time

import psutil
import pytest

from atlas.bench.processes import QUIET, TreeMemory, busy_note, high_water, run_watched

MB = 2**20
# Each level holds its own memory while the next one runs.
NESTED = """
import subprocess, sys, time
held = bytearray(80 * 2**20)
for place in range(0, len(held), 4096):
    held[place] = 1
level = int(sys.argv[1])
if level:
    subprocess.run([sys.executable, sys.argv[2], str(level - 1), sys.argv[2]], check=True)
else:
    time.sleep(0.5)
"""


def write(tmp_path, text):
    program = tmp_path / "program.py"
    program.write_text(text)
    return str(program)


def test_memory_of_children_counts(tmp_path):
    program = write(tmp_path, NESTED)
    alone, three = (
        run_watched([program, str(level), program], tmp_path / "log", {}) for level in (0, 2)
    )
    assert 80 * MB < alone < 160 * MB
    assert three - alone == pytest.approx(2 * alone, rel=0.25)


def test_shared_pages_count_once(monkeypatch):
    class Process:
        def __init__(self, pid, rss, shared, children=()):
            self.pid, self.info, self.own = pid, (rss, shared), list(children)

        def memory_info(self):
            return type("Info", (), {"rss": self.info[0], "shared": self.info[1]})

        def children(self, recursive):
            return self.own

    monkeypatch.setattr("atlas.bench.processes.high_water", lambda pid: 0)
    child = Process(2, 70, 50)
    root = Process(1, 100, 40, [child])
    memory = TreeMemory(root)
    memory.look()
    assert memory.peak == 60 + 20 + 50
    root.own.clear()  # its parent went: the child is still there
    child.info = (170, 50)
    memory.look()
    assert memory.peak == 60 + 120 + 50
    child.info = (10, 5)
    memory.look()
    assert memory.peak == 60 + 120 + 50


def test_a_short_peak_between_two_looks_is_found(tmp_path):
    program = write(tmp_path, "import time\nx = b'1' * (300 * 2**20)\ndel x\ntime.sleep(0.5)\n")
    if not high_water(os.getpid()):
        pytest.skip("the system does not tell")
    assert run_watched([program], tmp_path / "log", {}) > 300 * MB


def test_a_failure_says_the_last_words(tmp_path):
    program = write(tmp_path, "print('before')\nraise SystemExit('the reason')\n")
    with pytest.raises(RuntimeError, match=r"(?s)program.py ended with 1.*the reason"):
        run_watched([program], tmp_path / "log", {})


def test_what_a_program_leaves_behind_is_ended(tmp_path):
    text = (
        "import subprocess, sys, time\n"
        "left = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(left.pid))\n"
        "time.sleep(0.8)\n"
    )
    run_watched([write(tmp_path, text)], tmp_path / "log", {})
    pid = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return
        time.sleep(0.1)
    raise AssertionError("still running")


def test_environment_reaches_the_program_and_limits_on_threads_do_not(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = "import os\nprint(os.environ['HF_HUB_OFFLINE'], os.environ.get('OMP_NUM_THREADS'))\n"
    looks = []
    run_watched([write(tmp_path, text)], tmp_path / "log", QUIET, lambda: looks.append(1))
    assert (tmp_path / "log").read_text() == "1 None\n"
    assert looks


def test_a_busy_machine_is_told(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.9, 9.0, 9.0))
    assert busy_note() == []
    monkeypatch.setattr(os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    assert busy_note() == ["The machine was busy (load 3.0 on 4 cores): do not trust the seconds."]
