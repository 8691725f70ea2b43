import numpy as np
import pytest
from scipy import stats

from atlas.ops.statistics import lead_of, paired_comparison


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
