"""Generated texts that belong to nobody."""

import pytest

from atlas.config.federation import DataSettings
from atlas.data.anchors import anchor_texts
from atlas.data.synthetic import synthetic_clients
from atlas.errors import InputError


def test_texts_are_different_and_addressed_by_seed():
    texts = anchor_texts(500, 0)
    assert len(set(texts)) == 500
    assert anchor_texts(500, 0) == texts
    assert anchor_texts(120, 0) == texts[:120], "fewer are the first of more"
    assert len(set(texts) & set(anchor_texts(500, 1))) < 25


def test_there_are_statements_and_questions_of_many_words():
    texts = anchor_texts(500, 0)
    asked = [text for text in texts if "?" in text]
    assert 200 < len(asked) < 450
    assert len({word for text in texts for word in text.lower().split()}) > 500
    lengths = sorted(len(text.split()) for text in texts)
    assert lengths[0] >= 5 and lengths[-1] < 60
    assert all(text == " ".join(text.split()) and text[0].isupper() for text in texts)


@pytest.mark.parametrize("seed", [0, 7])
def test_no_client_has_one_of_them(seed):
    settings = DataSettings(clients_per_task=4, train=400, validation=100, test=100)
    theirs = set()
    for client in synthetic_clients(settings, seed):
        for example in (*client.train, *client.validation, *client.test):
            theirs |= {*example.texts, " ".join(example.texts)}
    assert not theirs & set(anchor_texts(2000, seed))


def test_more_texts_than_there_are_is_refused(monkeypatch):
    monkeypatch.setattr("atlas.data.anchors.MAKERS", (lambda one, two, rng: "the same",))
    with pytest.raises(InputError, match="3 generated texts wanted, but only 1"):
        anchor_texts(3, 0)
