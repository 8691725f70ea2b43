import numpy as np
import pytest
from sklearn import metrics as reference

from atlas.ops.metrics import (
    accuracy,
    auc,
    balanced_accuracy,
    class_scores,
    confusion,
    exact_match,
    example_weights,
    read_number,
    scored_part,
    token_f1,
)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_class_scores_equal_scikit_learn(classes):
    draw = np.random.default_rng(classes)
    truth = draw.integers(0, classes, 200)
    guess = np.where(draw.random(200) < 0.6, truth, draw.integers(0, classes, 200))
    scores = class_scores(truth, guess, classes)
    average = "binary" if classes == 2 else "macro"
    assert scores["accuracy"] == pytest.approx(reference.accuracy_score(truth, guess))
    assert scores["balanced_accuracy"] == pytest.approx(
        reference.balanced_accuracy_score(truth, guess)
    )
    assert scores["f1"] == pytest.approx(reference.f1_score(truth, guess, average=average))
    assert scores["matthews"] == pytest.approx(reference.matthews_corrcoef(truth, guess))


def test_constant_guesses_are_defined():
    truth = np.array([0, 1, 1, 1])
    scores = class_scores(truth, np.ones(4, dtype=int), 2)
    assert scores["accuracy"] == 0.75
    assert scores["balanced_accuracy"] == 0.5
    assert scores["matthews"] == 0.0


def test_text_answers():
    assert exact_match("The Eiffel Tower.", "eiffel tower") == 1.0
    assert exact_match("Paris", "London") == 0.0
    assert token_f1("the red house", "a red car") == pytest.approx(0.5)
    assert token_f1("", "") == 1.0
    assert scored_part("so 6 * 200 = 1,200\n#### 1,200", "####") == "1200"
    assert scored_part("no marker", "####") == "no marker"


@pytest.mark.parametrize(
    ("truth", "told", "same"),
    [
        ("1,000", "1000", True),
        ("18", "18.0", True),
        ("18", "18.", True),
        ("18", "$18", True),
        ("18", "180", False),
        ("18.0", "180", False),
        ("-3", "3", False),
        ("0.5", ".5", True),
        ("75", "75%", True),
        ("1000000", "1,000,000.00", True),
        ("18", "18 apples", False),
    ],
)
def test_numbers_are_compared_as_numbers(truth, told, same):
    assert exact_match(truth, told) == exact_match(told, truth) == float(same)
    if same:
        assert token_f1(truth, told) == 1.0


def test_words_stay_words():
    assert read_number("in 1999") is None and read_number("") is None
    assert exact_match("July 4, 1776", "july 4 1776") == 1.0


def test_weighted_right_answers_average_to_the_metric():
    draw = np.random.default_rng(2)
    truth, predicted = draw.choice(3, 50, p=[0.7, 0.2, 0.1]), draw.integers(0, 3, 50)
    table = confusion(truth, predicted, 3)
    right = (truth == predicted).astype(float)
    assert (right * example_weights(truth, "accuracy")).mean() == pytest.approx(accuracy(table))
    wanted = balanced_accuracy(table)
    assert (right * example_weights(truth, "matthews")).mean() == pytest.approx(wanted)
    assert example_weights(np.array([1, 1]), "f1").tolist() == [1.0, 1.0]


def test_auc_counts_pairs_that_are_in_order():
    draw = np.random.default_rng(0)
    higher, lower = draw.integers(0, 9, 30).tolist(), draw.integers(0, 7, 50).tolist()
    counted = sum(1.0 if h > low else 0.5 if h == low else 0.0 for h in higher for low in lower)
    assert auc(higher, lower) == pytest.approx(counted / 1500)
    assert auc([2.0, 3.0], [1.0]) == 1.0
    assert auc([1.0], [1.0]) == 0.5
    with pytest.raises(ValueError, match="both sides"):
        auc([], [1.0])
