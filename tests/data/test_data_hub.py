import sys

import pytest

from atlas.data.clients import load_clients
from atlas.data.hub import HubSource
from atlas.data.tasks import TASKS
from atlas.errors import InputError
from tests.data.helpers import assert_no_leakage, file_config, sentences, write_jsonl

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def local_only(monkeypatch, tmp_path):
    """No test may reach the network or leave files in the user's cache."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()


def save(folder, splits):
    made = {name: datasets.Dataset.from_list(rows) for name, rows in splits.items()}
    datasets.DatasetDict(made).save_to_disk(str(folder))


CSQA = {
    "id": "1",
    "question": "Where does ink go?",
    "question_concept": "ink",
    "choices": {"label": ["A", "B", "C"], "text": ["sky", "pen", "sea"]},
    "answerKey": "B",
}
SQUAD = {
    "context": "Rain fell on Monday.",
    "question": "When did rain fall?",
    "answers": {"text": ["Monday", "on Monday"], "answer_start": [13, 10]},
}


def hidden(count):
    return [{**record, "label": -1} for record in sentences(count, start=900)]


def test_a_saved_copy_is_read_with_its_validation_as_test(tmp_path):
    splits = {"train": sentences(60), "validation": sentences(40, start=200), "test": hidden(9)}
    save(tmp_path / "sst2", splits)
    source = HubSource(tmp_path)
    assert len(source.records(TASKS["sst2"], "train")) == 60
    test = source.records(TASKS["sst2"], "test")
    assert len(test) == 40 and test[2].where.endswith("sst2:validation:3")
    clients = load_clients(file_config(tmp_path, source="hub"))
    assert [c.id for c in clients] == ["sst2-1", "sst2-2", "sst2-3"]
    assert_no_leakage(clients)


def test_matched_validation_is_the_test_of_mnli(tmp_path):
    row = {"premise": "p", "hypothesis": "h", "label": 2, "idx": 0}
    splits = {"train": [row], "validation_matched": [row] * 2, "validation_mismatched": [row] * 3}
    save(tmp_path / "mnli", splits)
    assert len(HubSource(tmp_path).records(TASKS["mnli"], "test")) == 2


def test_a_folder_of_files_is_read(tmp_path):
    folder = tmp_path / "sst2"
    write_jsonl(folder / "train.jsonl", sentences(6))
    write_jsonl(folder / "validation.jsonl", sentences(4, start=50))
    assert len(HubSource(tmp_path).records(TASKS["sst2"], "test")) == 4
    parquet = tmp_path / "gsm8k"
    parquet.mkdir()
    rows = [{"question": f"{i}+{i}?", "answer": f"#### {2 * i}"} for i in range(5)]
    for split in ("train", "test"):
        datasets.Dataset.from_list(rows).to_parquet(
            str(parquet / f"{split}-00000-of-00001.parquet")
        )
    records = HubSource(tmp_path).records(TASKS["gsm8k"], "test")
    assert [dict(r) for r in records] == rows


def test_hub_records_take_the_fields_of_the_task(tmp_path):
    save(tmp_path / "csqa", {"train": [CSQA], "validation": [CSQA]})
    save(tmp_path / "squad", {"train": [SQUAD], "validation": [SQUAD]})
    source = HubSource(tmp_path)
    choice = dict(source.records(TASKS["csqa"], "test")[0])
    assert choice == {"question": CSQA["question"], "choices": ["sky", "pen", "sea"], "label": 1}
    assert source.records(TASKS["squad"], "test")[0]["answer"] == "Monday"


def test_what_is_missing_is_named(tmp_path):
    source = HubSource(tmp_path)
    with pytest.raises(InputError, match="sst2: no such folder; data.path must hold"):
        source.records(TASKS["sst2"], "train")
    save(tmp_path / "sst2", {"test": sentences(3)})
    with pytest.raises(InputError, match="no split train in it; splits there: test"):
        source.records(TASKS["sst2"], "train")
    (tmp_path / "cola").mkdir()
    with pytest.raises(InputError, match="cola: cannot be loaded as a data set"):
        source.records(TASKS["cola"], "train")
    save(tmp_path / "csqa", {"train": [{**CSQA, "answerKey": ""}]})
    with pytest.raises(InputError, match="csqa:train:1: not in the hub's format of 'csqa'"):
        source.records(TASKS["csqa"], "train")
    with pytest.raises(InputError, match="tasks.order.path: not set"):
        HubSource().records(TASKS["order"], "train")


def test_own_tasks_are_found_by_their_path(tmp_path):
    save(tmp_path / "away", {"train": sentences(3), "test": sentences(2)})
    source = HubSource(None, {"order": tmp_path / "away"})
    assert len(source.records(TASKS["order"], "test")) == 2


def test_built_in_tasks_are_asked_from_the_hub_by_name(monkeypatch):
    asked = []

    def load_dataset(place, name=None):
        asked.append((place, name))
        return {"train": sentences(1), "validation": sentences(2), "test": hidden(3)}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    source = HubSource()
    assert len(source.records(TASKS["cola"], "train")) == 1
    assert len(source.records(TASKS["cola"], "test")) == 2
    assert len(source.records(TASKS["gsm8k"], "test")) == 3
    assert asked == [("nyu-mll/glue", "cola"), ("openai/gsm8k", "main")]


def test_an_unreachable_hub_is_bad_input(monkeypatch):
    def load_dataset(place, name=None):
        raise ConnectionError(f"no way to {place}")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(InputError, match="nyu-mll/glue: cannot be loaded.*no way to"):
        HubSource().records(TASKS["sst2"], "train")


def test_the_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(InputError, match=r"pip install atlas-personal\[hub\]"):
        HubSource().records(TASKS["sst2"], "train")
