import numpy as np
import pytest

from atlas.data.partition import (
    deal,
    dirichlet_weights,
    distinct,
    field_weights,
    iid_weights,
    split_client,
)
from atlas.errors import InputError
from atlas.federation.clients import Example


def rng(seed=0):
    return np.random.default_rng(seed)


def skew(hands, labels):
    """Mean distance of the clients' label shares from the shares of all (total variation)."""
    labels = np.asarray(labels)
    overall = np.bincount(labels, minlength=2) / len(labels)
    shares = [np.bincount(labels[hand], minlength=2) / len(hand) for hand in hands]
    return np.mean([np.abs(share - overall).sum() / 2 for share in shares])


def assert_disjoint(hands):
    taken = np.concatenate(hands)
    assert len(set(taken.tolist())) == len(taken)


def test_iid_deals_everything_in_equal_parts():
    hands = deal([0] * 100, iid_weights(3), None, rng())
    assert sorted(map(len, hands)) == [33, 33, 34]
    assert_disjoint(hands)
    assert sorted(map(len, deal([0] * 100, iid_weights(3), 20, rng()))) == [20, 20, 20]


def test_dealing_repeats_with_the_generator_only():
    def hands(seed):
        weights = dirichlet_weights(4, 2, 0.5, rng(seed))
        return [hand.tolist() for hand in deal([0, 1] * 50, weights, 10, rng(seed))]

    assert hands(1) == hands(1) != hands(2)


def test_dirichlet_skews_more_the_smaller_alpha():
    labels = [0, 1] * 2000

    def mean_skew(alpha):
        deals = [deal(labels, dirichlet_weights(5, 2, alpha, rng(s)), 60, rng(s)) for s in range(8)]
        for hands in deals:
            assert_disjoint(hands)
            assert [len(hand) for hand in hands] == [60] * 5
        return np.mean([skew(hands, labels) for hands in deals])

    even = np.mean([skew(deal([0] * 4000, iid_weights(5), 60, rng(s)), labels) for s in range(8)])
    assert mean_skew(0.1) > 0.3
    assert mean_skew(0.1) > 1.5 * mean_skew(1.0)
    assert mean_skew(1.0) > 2 * even
    assert mean_skew(100.0) < 1.5 * even


def test_dirichlet_gives_every_client_its_share_when_labels_run_out():
    labels = [0] * 95 + [1] * 5
    hands = deal(labels, dirichlet_weights(4, 2, 0.01, rng(3)), None, rng(3))
    assert [len(hand) for hand in hands] == [25] * 4
    assert_disjoint(hands)


def test_fields_go_round_the_clients_in_order():
    names, weights = field_weights(["d", "b", "a", "c", "a"], 3, "key")
    assert names == ["a", "b", "c", "d"]
    assert weights.argmax(0).tolist() == [0, 1, 2, 0] and weights.sum(0).tolist() == [1] * 4
    hands = deal([3, 1, 0, 2, 0, -1], weights, None, rng())
    assert [sorted(hand.tolist()) for hand in hands] == [[0, 2, 4], [1], [3]]
    with pytest.raises(InputError, match="key: 2 distinct values .'a', 'b'. for 3 clients"):
        field_weights(["b", "a", "b"], 3, "key")


def test_split_client_is_disjoint_and_has_the_sizes():
    parts = split_client(20, (3, 5, 12), rng())
    assert [len(part) for part in parts] == [3, 5, 12]
    assert_disjoint(parts)
    with pytest.raises(InputError, match="7 examples cannot be split"):
        split_client(7, (4, 4), rng())


def test_distinct_keeps_the_first_of_each_text():
    texts = ["One two", "one  TWO ", "three", "four", "Three"]
    examples = [Example((text,), 0) for text in texts]
    assert distinct(examples) == [0, 2, 3]
    assert distinct(examples, {("four",)}) == [0, 2]
