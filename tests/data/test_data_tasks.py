import pytest

from atlas.config.federation import TaskSettings
from atlas.data.examples import read_example, text_key
from atlas.data.files import FileSource
from atlas.data.tasks import TASKS, find_task, task_registry
from atlas.errors import InputError
from atlas.federation.clients import Example, Task
from tests.data.helpers import write_jsonl

METRICS = {
    "sst2": "accuracy",
    "mnli": "accuracy",
    "qnli": "accuracy",
    "rte": "accuracy",
    "cola": "matthews",
    "mrpc": "balanced_accuracy",
    "csqa": "accuracy",
    "squad": "token_f1",
    "gsm8k": "exact_match",
}


def read(name, record):
    return read_example(TASKS[name], record, "some.jsonl:3")


def test_each_task_has_its_own_metric():
    assert {name: TASKS[name].metric for name in METRICS} == METRICS


def test_labels_by_index_name_and_csv_text():
    for label in (1, "1", " 1 ", "positive"):
        assert read("sst2", {"sentence": "Fine.", "label": label}) == Example(("Fine.",), 1)
    pair = read("mrpc", {"sentence1": "a", "sentence2": "b", "label": "not_equivalent"})
    assert pair == Example(("a", "b"), 0)


def test_a_label_name_that_is_a_number_is_a_name():
    task = task_registry({"stars": TaskSettings(text=["t"], labels=["1", "2"])})["stars"]
    assert read_example(task, {"t": "x", "label": "1"}, "w").label == 0


def test_choice_tasks_hold_all_choices():
    record = {"question": "Where is {ink}?", "choices": ["pen", "sky"], "label": 1}
    example = read("csqa", record)
    assert example.label == 1 and example.answer == "sky" and example.choices == ("pen", "sky")
    # Braces in the record are text, and the answer starts a line of its own.
    assert "{ink}" in example.texts[0] and example.texts[0].endswith("\n")
    assert read("csqa", {**record, "label": "pen"}).label == 0


def test_inference_as_a_choice_reads_the_folder_of_mnli(tmp_path):
    record = {"premise": "It rains.", "hypothesis": "It is wet.", "label": 0}
    example = read("mnli-choice", record)
    assert example.choices == ("yes", "maybe", "no") and example.answer == "yes"
    assert example.texts[0].index("It rains.") < example.texts[0].index("It is wet.")
    assert read("mnli-choice", {**record, "label": 2}).answer == "no"
    task = TASKS["mnli-choice"]
    assert task.has_choices and not task.label_set and not TASKS["mnli"].has_choices
    write_jsonl(tmp_path / "mnli" / "train.jsonl", [record])
    assert len(FileSource(tmp_path).records(task, "train")) == 1


def test_a_users_task_may_have_the_same_answers_for_all_records():
    settings = TaskSettings(kind="causal", text=["t"], labels=["good", "bad"], prompt="{t}?\n")
    task = task_registry({"mine": settings})["mine"]
    example = read_example(task, {"t": "fine", "label": "bad"}, "w")
    assert example == Example(("fine?\n",), 1, "bad", ("good", "bad"))


def test_free_answers_carry_the_answer():
    squad = read("squad", {"context": "Rain fell.", "question": "What fell?", "answer": "Rain"})
    assert squad.label == -1 and squad.answer == "Rain"
    assert squad.texts[0].index("Rain fell.") < squad.texts[0].index("What fell?")
    maths = read("gsm8k", {"question": "1+1?", "answer": "It is 2.\n#### 2"})
    assert maths.answer.endswith("#### 2")


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("sst2", {"label": 1}, "no field 'sentence'"),
        ("sst2", {"sentence": "x"}, "no field 'label'"),
        ("sst2", {"sentence": "x", "label": None}, "no field 'label'"),
        ("sst2", {"sentence": 5, "label": 1}, "sentence must be text, got 5"),
        ("sst2", {"sentence": " ", "label": 1}, "sentence empty"),
        ("sst2", {"sentence": "x", "label": 2}, "label 2 is no label.*0 negative, 1 positive"),
        ("sst2", {"sentence": "x", "label": -1}, "label -1 is no label"),
        ("sst2", {"sentence": "x", "label": True}, "label true is no label"),
        ("sst2", {"sentence": "x", "label": 0.5}, "label 0.5 is no label"),
        ("sst2", {"sentence": "x", "label": "good"}, 'label "good" is no label'),
        ("sst2", {"sentence": "x \ud800", "label": 1}, "broken character"),
        ("mrpc", {"sentence1": "x", "label": 1}, "no field 'sentence2'"),
        ("csqa", {"question": "x", "choices": "a b", "label": 0}, "must be a list of texts"),
        ("csqa", {"question": "x", "choices": ["a"], "label": 0}, "two or more texts"),
        ("csqa", {"question": "x", "choices": ["a", "b"], "label": 2}, "index from 0 to 1"),
        ("gsm8k", {"question": "x", "answer": ""}, "answer is empty"),
        ("gsm8k", {"question": "x", "answer": 4}, "answer must be text, got 4"),
    ],
)
def test_bad_records_are_named(name, record, message):
    with pytest.raises(InputError, match=f"^some.jsonl:3: .*{message}"):
        read(name, record)


def test_text_keys_ignore_case_and_spacing():
    assert text_key(Example(("A  b\n",), 0)) == text_key(Example((" a B",), 1))
    assert text_key(Example(("a b", "c"), 0)) != text_key(Example(("a", "b c"), 0))


def test_unknown_tasks_name_the_nearest():
    with pytest.raises(InputError, match="data.tasks: no task 'sst-2'; did you mean 'sst2'"):
        find_task("sst-2", TASKS, "data.tasks")
    with pytest.raises(InputError, match="tasks: cola, csqa"):
        find_task("xyzzy", TASKS, "data.tasks")


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("sst2", {"text": ["t"], "labels": ["a", "b"]}, "tasks.sst2: this name is built in"),
        ("my task", {"text": ["t"], "labels": ["a", "b"]}, "'my task' is no name"),
        ("mine", {"text": ["t"]}, "tasks.mine.labels: .*names of its labels.*0 given"),
        ("mine", {"text": ["t"], "labels": ["a", "a"]}, "names must differ"),
        ("mine", {"text": ["t", "u", "v"], "labels": ["a", "b"]}, "one or two fields, not 3"),
        ("mine", {"text": ["t"], "labels": ["a", "b"], "prompt": "{t}"}, "only causal tasks"),
        ("mine", {"text": ["t"], "labels": ["a", "b"], "metric": "token_f1"}, "does not fit"),
        ("mine", {"kind": "causal", "text": ["t"], "labels": ["a"]}, "two or more; 1 given"),
        (
            "mine",
            {"kind": "causal", "text": ["t"], "labels": ["a", "b"], "choices": "c"},
            "tasks.mine.choices: c given, but `labels` names",
        ),
        (
            "mine",
            {"kind": "causal", "text": ["t"], "labels": ["a", "b"], "metric": "token_f1"},
            "'token_f1' does not fit; allowed: accuracy",
        ),
        ("mine", {"kind": "causal", "text": ["t"], "prompt": "{u}"}, "{u} is not among"),
        ("mine", {"kind": "causal", "text": ["t"], "prompt": "{t"}, "tasks.mine.prompt"),
        ("mine", {"kind": "causal", "text": ["t"], "prompt": "{t!r}"}, "may not be formatted"),
        ("mine", {"kind": "causal", "text": ["t"], "metric": "f1"}, "'f1' does not fit"),
    ],
)
def test_bad_user_tasks_are_refused(name, settings, message):
    with pytest.raises(InputError, match=message):
        task_registry({name: TaskSettings.model_validate(settings)})


def test_user_tasks_join_the_registry():
    settings = TaskSettings(kind="causal", text=["q", "hint"], label="a", prompt="{hint} {q}\n")
    registry = task_registry({"riddle": settings})
    assert set(registry) == {*TASKS, "riddle"} and "riddle" not in TASKS
    example = read_example(registry["riddle"], {"q": "Who?", "hint": "H.", "a": "me"}, "w")
    assert example == Example(("H. Who?\n",), -1, "me")
    plain = task_registry({"p": TaskSettings(kind="causal", text=["q", "r"], label="a")})["p"]
    assert read_example(plain, {"q": "1", "r": "2", "a": "3"}, "w").texts == ("1\n2\n",)


@pytest.mark.parametrize("value", [2, "2", " 2 "])
def test_a_number_that_is_a_label_name_means_that_name(value):
    stars = Task("stars", "classification", ("text",), "label", labels=("1", "2", "3"))
    assert read_example(stars, {"text": "x", "label": value}, "here").label == 1
    turned = Task("turned", "classification", ("text",), "label", labels=("1", "0"))
    assert read_example(turned, {"text": "x", "label": 0}, "here").label == 1
