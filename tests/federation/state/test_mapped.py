"""Adapters in a file: the same bits as in memory, and only what is at work resident."""

from pathlib import Path

import pytest
import torch

from atlas.build.federation import assemble
from atlas.build.models import LARGEST_IN_MEMORY, find_place
from atlas.config.federation import ServerSettings
from atlas.errors import InputError
from atlas.federation.adapters.cohort import InMemory
from atlas.federation.mixing import parts
from atlas.federation.mixing.apply import mix_cohort
from atlas.federation.mixing.parts import client_bytes, mix_part, parts_of
from atlas.federation.state.mapped import DiskCohort, OnDisk
from atlas.federation.strategies.base import STRATEGIES
from atlas.jobs import runner
from atlas.jobs.federation.run import FederationJob
from atlas.jobs.runner import carry_on, new_folder
from atlas.ops.graph.sparse_rows import LARGEST_DENSE
from tests.helpers import make_client, make_config, make_task
from tests.laws.test_many_clients import MANY, both_weights, make_cohort


def on_disk(cohort):
    shapes = {name: tuple(value.shape) for name, value in cohort.tensors.items()}
    made = OnDisk().empty(cohort.layout, cohort.members, shapes, torch.float64, "cpu")
    return made.write(cohort.clients, cohort.tensors)


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def test_a_cohort_in_a_file_is_the_one_in_memory():
    cohort = make_cohort(9)
    disk = on_disk(cohort)
    some = ["c004", "c001"]
    assert equal(disk.tensors, cohort.tensors)
    assert equal(disk.take("c003"), cohort.take("c003"))
    assert equal(disk.select(some).tensors, cohort.select(some).tensors)
    assert not isinstance(disk.select(some), DiskCohort)
    other = make_cohort(9, seed=5).take("c002")
    given = {"c002": {k: v[:1] for k, v in other.items()}}
    assert equal(disk.put(given).tensors, cohort.put(given).tensors)


def test_a_cohort_apart_changes_by_itself():
    disk = on_disk(make_cohort(70))
    beside, before = disk.apart(), {k: v.clone() for k, v in disk.tensors.items()}
    assert equal(beside.tensors, before)
    beside.write(["c001"], {k: torch.ones_like(v[:1]) for k, v in before.items()})
    assert equal(disk.tensors, before)
    assert not equal(beside.tensors, before)


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_part_of_the_clients_gets_what_all_would(name, monkeypatch):
    strategy, cohort = STRATEGIES[name], make_cohort()
    weights, _ = both_weights(strategy, monkeypatch)
    spaces = strategy.mixing
    whole = mix_cohort(cohort, weights, **spaces)
    some = list(cohort.clients[5:31])
    found = mix_part(on_disk(cohort), weights, some, **spaces)
    assert found.clients == tuple(some)
    for client in some:
        own, wanted = found.take(client), whole.take(client)
        for key in wanted:
            assert torch.allclose(own[key], wanted[key], atol=1e-10), (client, key)


def test_few_clients_are_one_part_and_many_are_several(monkeypatch):
    few, many = make_cohort(LARGEST_DENSE), make_cohort()
    monkeypatch.setattr(parts, "PART_BYTES", 7 * client_bytes(many))
    assert list(parts_of({"": few}, few.clients)) == [list(few.clients)]
    found = list(parts_of({"": many}, many.clients))
    assert [c for some in found for c in some] == list(many.clients)
    assert {len(some) for some in found} == {7, MANY % 7}


def many_clients(state, **changes):
    tasks = make_task(), make_task("shape", ("flat", "round"))
    clients = [
        make_client(f"c{i:03d}", tasks[i % 2], train=4, validation=2, test=2, seed=i)
        for i in range(LARGEST_DENSE + 3)
    ]
    settings = {"sample": 0.1, "fingerprint": {"sketch": 32, "folds": 2}, **changes}
    return make_config(server={"state": state}, **settings), clients


def run(tmp_path, state, **changes):
    config, clients = many_clients(state, **changes)
    job = FederationJob(assemble(config, clients))
    arms = [cohort for group in job.federation.engine.groups for cohort in group.arms.values()]
    for cohort in (*arms, *job.federation.state.cohorts.values()):
        assert isinstance(cohort, DiskCohort) == (state == "disk")
    done = carry_on(job, new_folder(config, tmp_path / state, 1), None)
    rounds = sorted((done.folder.path / "rounds").rglob("*.*"))
    assert not done.summary["failures"]
    saved = {p.name: p.read_bytes() for p in rounds if p.suffix == ".safetensors"}
    return done.summary["adapters_sha256"], saved, len(rounds)


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "fedavg"},
        {"strategy": "local", "alone": False},
        {"strategy": "ditto", "absent": "last"},
        {"strategy": "flora"},
        {"strategy": "hetlora"},
        {"strategy": "mira", "keep_best": True, "train": {"keep_moments": True}},
    ],
    ids=lambda changes: changes["strategy"],
)
def test_a_run_has_the_same_bits_on_disk(tmp_path, monkeypatch, changes):
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 16)
    assert run(tmp_path, "disk", **changes) == run(tmp_path, "memory", **changes)


@pytest.mark.parametrize("state", ["memory", "disk"])
def test_a_resumed_run_reads_its_round_in_parts(tmp_path, monkeypatch, state):
    """Moments and adapters come back to the same bits, never all clients at once."""
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 16)
    changes = {"strategy": "fedavg", "train": {"keep_moments": True}, "rounds": 3}
    whole, _, _ = run(tmp_path / "whole", state, **changes)
    config, clients = many_clients(state, **changes)
    job = FederationJob(assemble(config, clients))
    folder = new_folder(config, tmp_path, 1)
    ends = iter([True, False])
    monkeypatch.setattr(runner, "save", stopping(runner.save, ends))
    with pytest.raises(KeyboardInterrupt):
        carry_on(job, folder, None)
    monkeypatch.undo()
    monkeypatch.setattr(parts, "PART_BYTES", 1 << 16)
    again = FederationJob(assemble(config, clients))
    asked = []
    ask = again.federation.engine.ask

    def watched(task, payloads):
        asked.append((task, len(payloads)))
        return ask(task, payloads)

    again.federation.engine.ask = watched
    done = carry_on(again, folder, None)
    assert done.summary["adapters_sha256"] == whole
    loads = [count for task, count in asked if task == "load"]
    assert sum(loads) == len(clients) and max(loads) < len(clients)
    for kept in again.federation.engine.groups[0].moments.values():
        assert isinstance(kept.first, DiskCohort) == (state == "disk")


def stopping(save, ends):
    """As `save`, and the process is interrupted after the second round."""

    def once(job, folder, seconds):
        save(job, folder, seconds)
        if not next(ends):
            raise KeyboardInterrupt

    return once


def test_what_is_not_at_work_is_not_resident(tmp_path, monkeypatch):
    """Two hundred adapters of 1 MB each are made, read and written one at a time."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("the system does not tell")
    made = on_disk(make_cohort(1))
    big = OnDisk().empty(
        made.layout, made.members * 200, {"x": (200, 1 << 18)}, torch.float32, "cpu"
    )
    (resident_before,) = (line for line in status.read_text().splitlines() if "VmRSS" in line)
    for row in range(200):
        big.fill(row, {"x": torch.full((1 << 18,), float(row))})
    (resident_after,) = (line for line in status.read_text().splitlines() if "VmRSS" in line)
    before, after = (int(line.split()[1]) for line in (resident_before, resident_after))
    assert after - before < 30_000  # kB
    assert float(big.tensors["x"][150, 7]) == 150.0


def test_auto_is_disk_for_large_cohorts():
    cpu = torch.device("cpu")
    auto = ServerSettings()
    assert isinstance(find_place(auto, LARGEST_IN_MEMORY, cpu), InMemory)
    assert isinstance(find_place(auto, LARGEST_IN_MEMORY + 1, cpu), OnDisk)
    assert isinstance(find_place(auto, LARGEST_IN_MEMORY + 1, torch.device("cuda")), InMemory)
    assert isinstance(find_place(ServerSettings(state="disk"), 1, cpu), OnDisk)
    assert isinstance(find_place(ServerSettings(state="memory"), 1 << 40, cpu), InMemory)


def test_a_disk_without_room_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"server\.state.*ATLAS_CACHE"):
        on_disk(make_cohort(2))


def test_an_accelerator_keeps_its_adapters():
    cohort = make_cohort(2)
    with pytest.raises(InputError, match="allowed: auto, memory"):
        OnDisk().empty(cohort.layout, cohort.members, {}, torch.float32, "cuda")
