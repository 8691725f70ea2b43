"""Who is like whom on real sentences; skipped without ATLAS_DATA."""

import json

import pytest
import yaml

from atlas.jobs.federation.plan import plan_run

PER_FILE = 260


def sentences(real_data, files):
    """The first lines of sst2, dealt to files."""
    lines = (real_data / "sst2" / "train.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines[: files * PER_FILE]]
    return [records[i * PER_FILE : (i + 1) * PER_FILE] for i in range(files)]


def write_federation(folder, labellings):
    """A settings file with a client per (name, task, records)."""
    tasks = {task: {"text": ["sentence"], "labels": ["0", "1"]} for _, task, _ in labellings}
    clients = []
    for name, task, records in labellings:
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(record) + "\n" for record in records))
        clients.append({"id": name, "task": task, "data": str(file)})
    settings = {
        "strategy": "atlas",
        "threads": 1,
        "backbone": {"name": "minilm", "max_length": 48},
        "adapter": {"modules": ["query", "value"], "blocks": 2, "rank": 8},
        "data": {"train": 180, "validation": 30, "test": 30},
        "tasks": tasks,
        "clients": clients,
    }
    path = folder / "federation.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def swapped(records):
    return [{**record, "label": 1 - int(record["label"])} for record in records]


@pytest.mark.slow
def test_two_labellings_of_the_same_sentences_are_two_groups(real_data, tmp_path):
    files = sentences(real_data, 3)
    federation = [(f"plain-{i}", "plain", records) for i, records in enumerate(files)]
    federation += [(f"swapped-{i}", "swapped", swapped(r)) for i, r in enumerate(files)]
    source = write_federation(tmp_path, federation)
    found = plan_run(source, [])["clusters"]
    assert found["k"] == 2
    assert found["ari"] == 1.0
    # Without the part that looks at labels there is nothing to tell the two groups apart.
    blind = plan_run(source, ["fingerprint.parts=[text]"])["clusters"]
    assert blind["ari"] < 1.0
