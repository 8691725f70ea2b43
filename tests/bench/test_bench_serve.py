"""`atlas bench serve`: contenders answer the same, and figures are of the work that was asked."""

import pytest

from atlas.bench import serve


def test_contenders_that_answer_otherwise_are_not_compared():
    same = {"rates": [10.0], "peak": 100, "answers": ["x"]}
    found = {"atlas": {**same, "rates": [30.0]}, "peft models": {**same, "peak": 250}}
    told = serve._ratios(9, found)
    assert told == {"requests_peft_models_9": 3.0, "memory_peft_models_9": 2.5}
    found["peft models"]["answers"] = ["y"]
    with pytest.raises(RuntimeError, match="answers otherwise"):
        serve._ratios(9, found)


@pytest.mark.slow
def test_all_contenders_are_measured():
    found = serve.run("quick", lambda *_: None)
    assert [row["name"] for row in found.rows] == list(serve.CONTENDERS)
    assert all(row["requests_second"] > 0 and row["peak_mb"] > 100 for row in found.rows)
