import numpy as np
import pytest

from atlas.data.clients import load_clients
from atlas.data.own import split_sizes
from atlas.errors import InputError
from tests.data.helpers import (
    assert_no_leakage,
    config,
    file_config,
    keys,
    sentences,
    write_jsonl,
)


@pytest.fixture
def folder(tmp_path):
    """A task whose two splits share texts, with other spacing and case, and repeat themselves."""
    train = sentences(120)
    test = [{**r, "sentence": r["sentence"].upper() + " "} for r in sentences(60, start=100)]
    write_jsonl(tmp_path / "sst2" / "train.jsonl", train + train[:30])
    write_jsonl(tmp_path / "sst2" / "test.jsonl", test + test[:5])
    return tmp_path


@pytest.mark.parametrize("method", ["iid", "dirichlet", "field"])
def test_dealt_clients_have_their_sizes_and_no_leakage(folder, method):
    clients = load_clients(file_config(folder, partition={"method": method, "field": "place"}))
    assert [c.id for c in clients] == ["sst2-1", "sst2-2", "sst2-3"]
    assert [c.group for c in clients] == ["sst2"] * 3
    for client in clients:
        assert [len(s) for s in (client.train, client.validation, client.test)] == [10, 5, 8]
    assert_no_leakage(clients)


def test_all_training_data_can_be_dealt(folder):
    clients = load_clients(file_config(folder, train=None))
    # 120 texts, 20 of which are also test texts.
    assert sum(len(c.train) + len(c.validation) for c in clients) == 100
    assert_no_leakage(clients)


def test_fields_decide_both_splits(folder):
    records = {r["sentence"]: r["place"] for r in sentences(160)}
    clients = load_clients(file_config(folder, partition={"method": "field", "field": "place"}))
    places = [
        {records[" ".join(e.texts[0].lower().split())] for e in c.train + c.validation + c.test}
        for c in clients
    ]
    assert places[0] <= {"town 0", "town 3", "town 6"}
    assert places[1] <= {"town 1", "town 4"} and places[2] <= {"town 2", "town 5"}


def test_single_tasks_are_dealt_in_their_own_way(folder):
    write_jsonl(folder / "cola" / "train.jsonl", sentences(120))
    write_jsonl(folder / "cola" / "test.jsonl", sentences(60, start=500))
    places = {"method": "field", "field": "place"}
    own = {"partitions": {"cola": places}, "trains": {"cola": 7}}
    both = {"tasks": ["sst2", "cola"]}
    plain = load_clients(file_config(folder, **both))
    dealt = load_clients(file_config(folder, **both, **own))
    assert dealt[3:] == plain[3:]
    assert dealt[:3] == load_clients(file_config(folder, tasks=["cola"], partition=places, train=7))
    assert [len(c.train) for c in dealt] == [7] * 3 + [10] * 3


def test_label_skew_is_the_same_in_train_and_test(tmp_path):
    write_jsonl(tmp_path / "sst2" / "train.jsonl", sentences(1200))
    write_jsonl(tmp_path / "sst2" / "test.jsonl", sentences(1200, start=5000))
    partition = {"method": "dirichlet", "alpha": 0.3}
    sizes = {"train": 100, "validation": 20, "test": 100, "clients_per_task": 5}
    clients = load_clients(file_config(tmp_path, partition=partition, **sizes))
    train = [np.mean([e.label for e in c.train]) for c in clients]
    test = [np.mean([e.label for e in c.test]) for c in clients]
    assert np.ptp(train) > 0.3 and np.allclose(train, test, atol=0.25)


@pytest.mark.parametrize("method", ["iid", "dirichlet", "field"])
@pytest.mark.parametrize(("tests", "size"), [("shared", 16), ("unseen", 25)])
def test_test_texts_can_be_drawn_from_more_than_ones_own_part(folder, method, tests, size):
    """Of 100 training texts, numbered first, three clients hold 45; 60 are in the test split."""
    partition = {"method": method, "field": "place"}
    apart = load_clients(file_config(folder, partition=partition))
    drawn = load_clients(file_config(folder, partition=partition, tests=tests, test=size))
    assert [(c.train, c.validation) for c in drawn] == [(c.train, c.validation) for c in apart]
    assert [len(keys(c.test)) for c in drawn] == [size] * 3
    assert_no_leakage(drawn)
    assert not keys(apart[0].test) & keys(apart[1].test)
    # Who has places of its own still shares with nobody.
    assert bool(keys(drawn[0].test) & keys(drawn[1].test)) == (method != "field")
    numbers = {int(e.texts[0].split()[2]) for c in drawn for e in c.test}
    assert any(n < 100 for n in numbers) == (tests == "unseen")
    assert any(n >= 100 for n in numbers)


def test_all_that_is_unseen_can_serve_every_client(folder):
    clients = load_clients(file_config(folder, tests="unseen", test=115))
    assert keys(clients[0].test) == keys(clients[1].test) == keys(clients[2].test)
    assert len(clients[0].test) == 100 - 45 + 60
    # With all training data dealt, the test split is what is left.
    everything = load_clients(file_config(folder, train=None, tests="unseen", test=60))
    assert len(keys(everything[0].test)) == 60


def test_all_of_a_small_test_split_serves_every_client(folder):
    clients = load_clients(file_config(folder, tests="shared", test=60))
    assert keys(clients[0].test) == keys(clients[1].test) == keys(clients[2].test)
    assert len(clients[0].test) == 60


def test_clients_repeat_with_the_seed_and_stand_alone(folder):
    write_jsonl(folder / "cola" / "train.jsonl", sentences(60))
    write_jsonl(folder / "cola" / "test.jsonl", sentences(60, start=500))
    alone = load_clients(file_config(folder))
    assert alone == load_clients(file_config(folder)) != load_clients(file_config(folder, seed=1))
    both = load_clients(file_config(folder, tasks=["sst2", "cola"]))
    assert [c.id for c in both][:2] == ["cola-1", "cola-2"]
    assert both[3:] == alone


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"tasks": []}, "data.tasks: empty"),
        ({"tasks": ["sst"]}, "data.tasks: no task 'sst'; did you mean 'sst2'"),
        ({"tasks": ["sst2", "sst2"]}, "data.tasks: 'sst2' occurs twice"),
        ({"noise": 0.1}, "data.noise: 0.1"),
        ({"train": 40}, "sst2-[123] needs 45 training examples and gets 3.; .*100 different ones"),
        ({"train": None, "validation": 40}, "needs 41 training examples and gets 3"),
        ({"test": 30}, "data.test 30: client sst2-. gets 20 test examples; .*60 different ones"),
        ({"test": 61, "tests": "shared"}, "gets 60 test examples; .*for each of the clients"),
        ({"test": 116, "tests": "unseen"}, "gets 115 test examples; .*115 different ones"),
        ({"partition": {"method": "field"}}, "data.partition.field: not set"),
        ({"partition": {"method": "field", "field": "x"}}, r"train.jsonl:1: .*'x' must hold"),
        (
            {"partitions": {"cola": {}}},
            'data.partitions.cola: "cola" is not among data.tasks; allowed: sst2',
        ),
        ({"trains": {"sst": 4}}, 'data.trains.sst: "sst" is not among data.tasks; allowed: sst2'),
        ({"trains": {"sst2": 40}}, "data.trains.sst2 40, data.validation 5: .*needs 45"),
        ({"partitions": {"sst2": {"method": "field"}}}, "data.partitions.sst2.field: not set"),
        (
            {"partitions": {"sst2": {"method": "field", "field": "x"}}},
            r"train.jsonl:1: data.partitions.sst2.field 'x' must hold",
        ),
        (
            {"partition": {"method": "field", "field": "place"}, "clients_per_task": 8},
            "'place' of task 'sst2': 7 distinct values .* for 8 clients",
        ),
    ],
)
def test_bad_settings_are_named(folder, data, message):
    with pytest.raises(InputError, match=message):
        load_clients(file_config(folder, **data))


def test_dirichlet_needs_labels(tmp_path):
    records = [{"question": f"q {i}", "answer": "a"} for i in range(99)]
    for split in ("train", "test"):
        write_jsonl(tmp_path / "gsm8k" / f"{split}.jsonl", records)
    skewed = {"method": "dirichlet"}
    message = "{}.method: dirichlet deals by label, but task 'gsm8k'"
    with pytest.raises(InputError, match=message.format("data.partition")):
        load_clients(file_config(tmp_path, tasks=["gsm8k"], partition=skewed))
    with pytest.raises(InputError, match=message.format("data.partitions.gsm8k")):
        load_clients(file_config(tmp_path, tasks=["gsm8k"], partitions={"gsm8k": skewed}))


def test_bad_lines_are_named(folder):
    path = folder / "sst2" / "train.jsonl"
    path.write_text('{"sentence": "x", "label": 0}\n{"sentence": "y", "label": 7}\n')
    with pytest.raises(InputError, match=r"sst2.train.jsonl:2: label 7 is no label"):
        load_clients(file_config(folder))


def test_user_tasks_may_live_elsewhere(tmp_path, monkeypatch):
    for split, start in (("train", 0), ("test", 500)):
        write_jsonl(tmp_path / "far" / f"{split}.jsonl", sentences(60, start))
    monkeypatch.delenv("ATLAS_DATA", raising=False)
    mine = {"text": ["sentence"], "labels": ["no", "yes"], "path": str(tmp_path / "far")}
    data = {"source": "files", "tasks": ["mine"], "train": 5, "validation": 5, "test": 5}
    clients = load_clients(config(data=data, tasks={"mine": mine}))
    assert [c.id for c in clients] == ["mine-1", "mine-2", "mine-3"]


@pytest.mark.parametrize("count", range(8, 400, 7))
@pytest.mark.parametrize("train", [1, 48, None])
def test_split_sizes_stay_within_the_file_and_the_bounds(count, train):
    sizes = split_sizes(count, train, 32, 200)
    assert min(sizes) >= 1 and sum(sizes) <= count
    assert sizes[0] <= (train or count) and sizes[1] <= 32 and sizes[2] <= 200
    if train is None:
        assert sum(sizes) == count


def test_split_sizes_by_hand():
    assert split_sizes(20, 48, 32, 200) == (10, 4, 6)
    assert split_sizes(280, 48, 32, 200) == (48, 32, 200)
    assert split_sizes(1000, None, 32, 200) == (768, 32, 200)


def own_config(clients, seed=0, **data):
    sizes = {"train": 48, "validation": 32, "test": 200}
    return config(seed=seed, clients=clients, data={**sizes, **data})


def csv_file(path, records):
    rows = [f'"{r["sentence"]}",{r["label"]}' for r in records]
    path.write_text("\n".join(["sentence,label", *rows]) + "\n", encoding="utf-8")
    return str(path)


def test_own_clients_from_jsonl_and_csv(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "b.jsonl", sentences(40))
    csv_file(tmp_path / "a.csv", sentences(20, start=100))
    monkeypatch.chdir(tmp_path)
    listed = [
        {"id": "zoe", "task": "sst2", "data": "b.jsonl", "device": "old phone"},
        {"id": "amy", "task": "cola", "data": "a.csv", "backbone": "tiny"},
    ]
    amy, zoe = load_clients(own_config(listed))
    assert (amy.id, amy.task.name, amy.backbone) == ("amy", "cola", "tiny")
    assert (zoe.id, zoe.group, zoe.device) == ("zoe", "sst2", "old phone")
    assert [len(s) for s in (amy.train, amy.validation, amy.test)] == [10, 4, 6]
    assert [len(s) for s in (zoe.train, zoe.validation, zoe.test)] == [20, 8, 12]
    # Neither the order of the list nor the other client matters.
    assert load_clients(own_config(listed[::-1])) == [amy, zoe]
    assert load_clients(own_config(listed[1:])) == [amy]
    assert load_clients(own_config(listed, seed=1)) != [amy, zoe]


def test_own_clients_with_the_same_texts_do_not_leak(tmp_path):
    one = write_jsonl(tmp_path / "one.jsonl", sentences(60) + sentences(10))
    two = write_jsonl(tmp_path / "two.jsonl", sentences(60, start=20))
    test = write_jsonl(tmp_path / "test.jsonl", sentences(50, start=70))
    clients = load_clients(
        own_config(
            [
                {"id": "a", "task": "sst2", "data": str(one)},
                {"id": "b", "task": "sst2", "data": str(two), "test_data": str(test)},
                {"id": "c", "task": "sst2", "data": str(one)},
            ]
        )
    )
    assert_no_leakage(clients)
    assert len(clients[1].test) == 50 and keys(clients[0].test) != keys(clients[2].test)
    assert all(c.train and c.validation and c.test for c in clients)


def test_test_data_is_bounded_and_wins(tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", sentences(30))
    test = write_jsonl(tmp_path / "t.jsonl", sentences(25))
    listed = [{"id": "a", "task": "sst2", "data": str(data), "test_data": str(test)}]
    (client,) = load_clients(own_config(listed, test=20))
    assert len(client.test) == 20 and len(client.train) + len(client.validation) == 10
    both = [{**listed[0], "test_data": str(data)}]
    with pytest.raises(InputError, match="clients.a.data: .*0 examples that no client of task"):
        load_clients(own_config(both))


def test_bad_own_clients_are_named(tmp_path):
    small = write_jsonl(tmp_path / "s.jsonl", sentences(7) + sentences(7))
    listed = [{"id": "a", "task": "sst2", "data": str(small)}]
    with pytest.raises(InputError, match="clients.a.data: .*7 different examples; .*at least 8"):
        load_clients(own_config(listed))
    with pytest.raises(InputError, match="clients.a.task: no task 'sst_2'; did you mean 'sst2'"):
        load_clients(own_config([{**listed[0], "task": "sst_2"}]))
    with pytest.raises(InputError, match="gone.csv: No such file"):
        load_clients(own_config([{**listed[0], "data": str(tmp_path / "gone.csv")}]))
    with pytest.raises(InputError, match="data.tasks: sst2 given, but there are `clients`"):
        load_clients(own_config(listed, tasks=["sst2"]))
    with pytest.raises(InputError, match="data.tests: 'shared' given.*allowed: apart"):
        load_clients(own_config(listed, tests="shared"))


def test_synthetic_is_the_default():
    sizes = {"train": 4, "validation": 2, "test": 2}
    clients = load_clients(config(data=sizes))
    assert [c.id for c in clients][0] == "order-1" and len(clients) == 9
    with pytest.raises(InputError, match="data.tests: 'shared' given.*allowed: apart"):
        load_clients(config(data={**sizes, "tests": "shared"}))


@pytest.mark.parametrize(
    ("task", "partition"),
    [
        ("sst2", {"method": "iid"}),
        ("cola", {"method": "dirichlet"}),
        ("mrpc", {"method": "iid"}),
        ("mnli", {"method": "field", "field": "genre"}),
        ("csqa", {"method": "iid"}),
        ("squad", {"method": "iid"}),
        ("gsm8k", {"method": "iid"}),
    ],
)
def test_real_data(real_data, task, partition):
    if not (real_data / task).is_dir():
        pytest.skip(f"ATLAS_DATA has no folder {task}")
    sizes = {"train": 48, "validation": 32, "test": 80}
    clients = load_clients(file_config(real_data, tasks=[task], partition=partition, **sizes))
    assert len(clients) == 3
    assert_no_leakage(clients)
    assert all(len(c.train) == 48 and len(c.test) == 80 for c in clients)


def test_clients_that_share_a_file_do_not_train_on_each_others_validation(tmp_path):
    data = write_jsonl(tmp_path / "d.jsonl", sentences(60))
    listed = [{"id": name, "task": "sst2", "data": str(data)} for name in ("a", "b")]
    one, two = load_clients(own_config(listed))
    for client, other in ((one, two), (two, one)):
        judged = {e.texts for e in (*other.validation, *other.test)}
        assert not judged & {e.texts for e in client.train}
        assert not {e.texts for e in other.test} & {e.texts for e in client.validation}
