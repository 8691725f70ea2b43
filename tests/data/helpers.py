"""Small files and records that the data tests share."""

import json

from atlas.config.federation import FederationConfig
from atlas.data.examples import text_key


def write_jsonl(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def sentences(count, start=0, labels=2):
    return [
        {"sentence": f"sentence number {i} of many", "label": i % labels, "place": f"town {i % 7}"}
        for i in range(start, start + count)
    ]


def config(**settings):
    return FederationConfig.model_validate(settings)


def file_config(folder, seed=0, **data):
    defaults = {"source": "files", "path": str(folder), "tasks": ["sst2"], "clients_per_task": 3}
    sizes = {"train": 10, "validation": 5, "test": 8}
    return config(seed=seed, data={**defaults, **sizes, **data})


def keys(examples):
    return {text_key(example) for example in examples}


def assert_no_leakage(clients):
    """No text in two splits of a client, nor in one's training and any same-task client's test."""
    for one in clients:
        splits = [one.train, one.validation, one.test]
        assert len(set().union(*map(keys, splits))) == sum(map(len, splits))
        for other in clients:
            if other.task.name == one.task.name:
                assert not keys(one.train + one.validation) & keys(other.test)
