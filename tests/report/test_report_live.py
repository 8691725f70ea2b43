"""What a run says while it goes on."""

import io

from rich.console import Console

from atlas.report.live import PlainDisplay


def lines(*events):
    text = io.StringIO()
    display = PlainDisplay(Console(file=text, width=200))
    for name, fields in events:
        display.event(name, fields)
    return text.getvalue().splitlines()


def test_a_plan_is_told_with_its_warnings():
    clusters = {"k": 3, "method": "kmeans", "silhouette": 0.643}
    plan = {"clients": ["a", "b", "c", "d"], "clusters": clusters, "warnings": ["beware"]}
    assert lines(("planned", plan)) == [
        "plan  4 fingerprints  k = 3 by kmeans  silhouette 0.64",
        "  beware",
    ]
    alone = {**plan, "clusters": {**clusters, "k": 1, "silhouette": None}, "warnings": []}
    assert lines(("planned", alone)) == ["plan  4 fingerprints  k = 1 by kmeans"]
    nothing = {**plan, "clusters": None, "warnings": []}
    assert lines(("planned", nothing)) == ["plan  4 fingerprints"]


def test_a_round_is_one_line():
    found = lines(
        ("started", {"rounds": 5}),
        ("fitted", {"loss": 0.5}),
        ("fitted", {"loss": 0.7}),
        ("validated", {"members": {"a": {"score": 0.5}, "b": {"loss": 1.0}}}),
        ("refused", {"client": "b", "reason": "norm"}),
        ("round_finished", {"round": 2, "up": 1_000_000, "down": 500_000, "seconds": 3.21}),
    )
    assert found == [
        "round 2/5  loss 0.600  validation 50.0  1.50 MB  3.2 s",
        "  not used: b: norm",
    ]
