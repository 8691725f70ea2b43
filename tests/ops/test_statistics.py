import numpy as np
import pytest
from scipy import stats

from atlas.ops.metrics import lead_of, paired_comparison, share_of_way


def test_equals_scipy_on_the_pairs():
    draw = np.random.default_rng(0)
    first, second = draw.normal(0.7, 0.02, 8), draw.normal(0.72, 0.02, 8)
    found = paired_comparison(first, second)
    assert found["t_test_p"] == pytest.approx(stats.ttest_rel(second, first).pvalue)
    assert found["wilcoxon_p"] == pytest.approx(stats.wilcoxon(second, first).pvalue)
    gap = second - first
    assert found["difference"] == pytest.approx(gap.mean())
    assert found["cohens_d"] == pytest.approx(gap.mean() / gap.std(ddof=1))


def test_pairing_matters():
    first = np.array([0.1, 0.5, 0.9, 0.3])
    second = first + np.array([0.011, 0.01, 0.009, 0.01])
    assert paired_comparison(first, second)["t_test_p"] < 0.001
    assert paired_comparison(first, second[::-1])["t_test_p"] > 0.5


def test_undefined_values_are_none():
    same = paired_comparison([0.5, 0.6], [0.5, 0.6])
    assert same == {"difference": 0.0, "t_test_p": None, "wilcoxon_p": None, "cohens_d": None}
    single = paired_comparison([0.5], [0.7])
    assert single["difference"] == pytest.approx(0.2)
    assert single["t_test_p"] is None
    shifted = paired_comparison([0.1, 0.2, 0.3], [0.2, 0.3, 0.4])
    assert shifted["t_test_p"] is None
    assert shifted["cohens_d"] is None


def test_a_lead_and_its_error_are_those_of_the_differences():
    draw = np.random.default_rng(1)
    first, second = draw.normal(size=40), draw.normal(size=40)
    lead, error = lead_of(first, second)
    gaps = [a - b for a, b in zip(first, second, strict=True)]
    assert lead == pytest.approx(sum(gaps) / 40)
    assert error == pytest.approx(stats.sem(gaps))
    assert lead_of(first, first) == (0.0, 0.0)
    assert lead_of(first[:1], second[:1]) == (pytest.approx(gaps[0]), 0.0)


def test_a_share_of_the_way_is_a_ratio_of_means_with_the_jackknifes_error():
    draw = np.random.default_rng(2)
    starts = draw.normal(0.5, 0.02, size=7)
    ends = starts + draw.normal(0.1, 0.02, size=7)
    scores = starts + draw.normal(0.06, 0.02, size=7)
    share, error = share_of_way(scores, starts, ends)
    assert share == pytest.approx((scores.mean() - starts.mean()) / (ends.mean() - starts.mean()))
    left_out = []
    for seed in range(7):
        kept = [i for i in range(7) if i != seed]
        gone = sum(scores[i] - starts[i] for i in kept)
        left_out.append(gone / sum(ends[i] - starts[i] for i in kept))
    assert error == pytest.approx(6**0.5 * np.std(left_out))
    assert share_of_way([0.7], [0.6], [0.8]) == (pytest.approx(0.5), None)
    assert share_of_way([0.5, 0.5], [0.0, 0.0], [1.0, 0.0]) == (1.0, None), "no way without one"


def test_equal_ways_give_the_error_of_a_mean():
    gone = np.array([0.02, 0.05, 0.03, 0.08])
    share, error = share_of_way(gone, np.zeros(4), np.full(4, 0.1))
    assert share == pytest.approx(10 * gone.mean())
    assert error == pytest.approx(10 * stats.sem(gone))
