"""What a node keeps: the last rounds, whole or not at all, and nothing of a past given up."""

import pytest

from atlas.errors import InputError
from atlas.federation.exchange.message import encode
from atlas.jobs.deploy.node_disk import ClientDisk


def state(number):
    return encode({}, {"accept": None, "ready": [str(number)]})


@pytest.fixture
def disk(tmp_path):
    return ClientDisk.open(tmp_path, "run", "a")


def saved(disk):
    return sorted(path.name for path in disk.folder.iterdir() if path.name.isdigit())


def test_the_round_under_way_and_the_two_before_it_are_kept(disk):
    assert disk.newest() is None
    for number in range(1, 6):
        disk.save(number, state(number))
    disk.save(5, state(55))
    assert saved(disk) == ["0003", "0004", "0005"]
    assert disk.newest() == state(55)
    assert disk.folder.stat().st_mode & 0o077 == 0


def test_a_new_life_of_the_server_gives_up_what_is_beyond_it_and_the_same_one_does_not(disk):
    disk.go_on("first", 0)
    for number in (1, 2, 3):
        disk.save(number, state(number))
    disk.go_on("first", 0)
    assert disk.newest() == state(3)
    disk.go_on("second", 2)
    assert saved(disk) == ["0001", "0002"]
    disk.go_on("third", 0)
    assert disk.newest() is None


def test_a_damaged_state_is_passed_over(disk):
    disk.save(1, state(1))
    disk.save(2, state(2))
    path = disk.folder / "0002"
    path.write_bytes(path.read_bytes()[:20])
    assert disk.newest() == state(1)


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path):
    for run, client in (("..", "a"), ("run", "../a"), ("a/b", "c")):
        with pytest.raises(InputError):
            ClientDisk.open(tmp_path, run, client)


def test_a_run_goes_on_with_what_it_was_begun_with_alone(disk):
    disk.check_identity("one")
    disk.check_identity("one")
    with pytest.raises(InputError, match="begun with"):
        disk.check_identity("two")
