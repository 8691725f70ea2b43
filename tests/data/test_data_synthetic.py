from itertools import combinations

import numpy as np
import pytest

from atlas.config.federation import DataSettings
from atlas.data.grammar import order, paraphrase, sentiment
from atlas.data.lexicon import BAD, DOMAINS, GOOD
from atlas.data.synthetic import MAKERS, synthetic_clients, task_domains
from atlas.data.tasks import SYNTHETIC
from atlas.errors import InputError
from tests.data.helpers import assert_no_leakage, keys

SIZES = {"train": 40, "validation": 20, "test": 60}


def clients(seed=0, **settings):
    return synthetic_clients(DataSettings(**{**SIZES, **settings}), seed)


def split_texts(client):
    return [e.texts for e in client.train + client.validation + client.test]


def test_three_tasks_with_their_clients():
    found = {c.id: c for c in clients()}
    assert set(found) == {f"{task}-{n}" for task in SYNTHETIC for n in (1, 2, 3)}
    for client in found.values():
        assert client.group == client.task.name
        assert [len(s) for s in (client.train, client.validation, client.test)] == [40, 20, 60]
        segments = 2 if client.task.name == "paraphrase" else 1
        assert {len(text) for text in split_texts(client)} == {segments}


def test_splits_are_balanced_and_texts_distinct_at_full_size():
    everyone = clients(train=100, validation=100, test=100)
    assert_no_leakage(everyone)
    for task in SYNTHETIC:
        of_task = [c for c in everyone if c.task.name == task]
        assert len(set().union(*(keys(c.train + c.validation + c.test) for c in of_task))) == 900
    for client in everyone:
        for split in (client.train, client.validation, client.test):
            assert np.mean([e.label for e in split]) == 0.5


def test_clients_repeat_with_the_seed_only():
    assert clients(3) == clients(3)
    one, two = clients(3)[0], clients(4)[0]
    assert not keys(one.train) & keys(two.train)


def test_a_client_does_not_depend_on_the_others():
    alone = clients(tasks=["order"], clients_per_task=1)
    assert alone[0] in clients(tasks=["sentiment", "order"], clients_per_task=4)


def domain_counts(client):
    text = " ".join(" ".join(text) for text in split_texts(client)).lower()
    return {d.name: sum(text.count(f"the {w} ") for w in d.people + d.things) for d in DOMAINS}


def test_tasks_share_no_domain():
    worlds = [{d.name for d in task_domains(task, 0)} for task in SYNTHETIC]
    assert set.union(*worlds) == {d.name for d in DOMAINS}
    assert sum(len(world) for world in worlds) == len(DOMAINS)
    for task in SYNTHETIC:
        own = {d.name for d in task_domains(task, 0)}
        for client in clients(tasks=[task]):
            counts = domain_counts(client)
            assert sum(counts[name] for name in own) > 0.9 * sum(counts.values())


def test_clients_of_a_task_have_different_homes():
    for task in SYNTHETIC:
        world = [d.name for d in task_domains(task, 0)]
        everyone = clients(tasks=[task], clients_per_task=len(world), train=200)
        for home, client in zip(world, everyone, strict=True):
            counts = {name: domain_counts(client)[name] for name in world}
            assert max(counts, key=counts.get) == home


def test_domains_share_no_words_of_their_own():
    assert len(DOMAINS) >= 9
    for part in ("people", "things", "places", "luck", "mishaps"):
        for one, two in combinations(DOMAINS, 2):
            assert not set(getattr(one, part)) & set(getattr(two, part)), (one.name, two.name)


def test_domains_are_used_again_with_other_texts():
    count = len(DOMAINS) + 2
    many = clients(tasks=["sentiment"], clients_per_task=count, train=10, validation=4, test=6)
    assert len({c.id for c in many}) == count
    texts = [key for c in many for key in keys(c.train + c.validation + c.test)]
    assert len(set(texts)) == len(texts) == 20 * count


@pytest.mark.parametrize("noise", [0.1, 0.25, 0.5])
def test_noise_flips_the_stated_share_of_training_labels_only(noise):
    for clean, noisy in zip(clients(), clients(noise=noise), strict=True):
        assert [e.texts for e in clean.train] == [e.texts for e in noisy.train]
        flips = [a.label != b.label for a, b in zip(clean.train, noisy.train, strict=True)]
        assert sum(flips) == round(noise * 40)
        assert clean.validation == noisy.validation and clean.test == noisy.test


@pytest.mark.parametrize(
    ("difference", "shares"), [(0.5, (0.275, 0.5, 0.725)), (1, (0.05, 0.5, 0.95))]
)
def test_difference_spreads_the_label_shares_of_a_tasks_clients(difference, shares):
    found = clients(tasks=["sentiment"], clients_per_task=3, train=40, difference=difference)
    for client, share in zip(found, shares, strict=True):
        for part in (client.train, client.validation, client.test):
            assert abs(sum(e.label for e in part) - share * len(part)) <= 1
    assert clients(difference=0.0) == clients()
    alone = clients(tasks=["sentiment"], clients_per_task=1, train=40, difference=difference)
    assert sum(e.label for e in alone[0].train) == 20


def test_no_single_word_of_opinion_decides_the_sentiment():
    (client,) = clients(tasks=["sentiment"], clients_per_task=1, train=400, test=1)
    for words, label in ((GOOD, 1), (BAD, 0)):
        with_word = [e.label for e in client.train if any(w in e.texts[0] for w in words)]
        agreement = np.mean([found == label for found in with_word])
        assert 0.6 < agreement < 0.9


def both_labels(make, domain, seed):
    """The texts of either label, all else equal: the label is drawn upon last."""
    return [make(domain, np.random.default_rng(seed), label) for label in (0, 1)]


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
def test_scrambled_sentences_are_natural_ones_with_few_exchanges(domain):
    for seed in range(40):
        (scrambled,), (natural,) = both_labels(order, domain, seed)
        one, two = scrambled.lower().rstrip(".").split(), natural.lower().rstrip(".").split()
        assert sorted(one) == sorted(two)
        moved = sum(a != b for a, b in zip(one, two, strict=True))
        assert 2 <= moved <= 6


@pytest.mark.parametrize("domain", DOMAINS, ids=lambda domain: domain.name)
def test_paraphrases_and_near_misses_start_from_the_same_report(domain):
    for seed in range(40):
        different, same = both_labels(paraphrase, domain, seed)
        assert different[0] == same[0] and different[1] != same[1]
        assert same[0] != same[1]


@pytest.mark.parametrize("make", [sentiment, paraphrase, order])
def test_texts_read_like_sentences(make):
    for domain in DOMAINS:
        for seed in range(20):
            for text in make(domain, np.random.default_rng(seed), seed % 2):
                assert text[0].isupper() and text.endswith(".")
                assert "  " not in text and " ," not in text and 3 <= len(text.split()) <= 40


def test_bad_settings_are_named():
    with pytest.raises(InputError, match="no task 'sentimnt'; did you mean 'sentiment'"):
        clients(tasks=["sentimnt"])
    with pytest.raises(InputError, match="no task 'sst2'; tasks: order, paraphrase, sentiment"):
        clients(tasks=["sst2"])
    with pytest.raises(InputError, match="data.partition.method: 'dirichlet'"):
        clients(partition={"method": "dirichlet"})


def test_an_exhausted_text_space_is_named(monkeypatch):
    monkeypatch.setitem(MAKERS, "order", lambda domain, rng, label: (f"{rng.integers(9)}",))
    with pytest.raises(InputError, match="'order' has only about 9 different texts, and"):
        clients(tasks=["order"])
