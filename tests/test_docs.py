"""Files and tests that the docs name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
NAMED = re.compile(r"`((?:[\w-]+/)+[\w-]+\.py)(?:::(\w+))?`(?:, `::(\w+)`)*")


def find(name):
    places = [ROOT / name, ROOT / "src" / "atlas" / name]
    return next((place for place in places if place.exists()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_named_is_there(page):
    text = page.read_text(encoding="utf-8")
    for match in NAMED.finditer(text):
        place = find(match.group(1))
        assert place is not None, match.group(1)
        for test in re.findall(r"::(\w+)", match.group(0)):
            assert f"def {test}(" in place.read_text(encoding="utf-8"), match.group(0)
