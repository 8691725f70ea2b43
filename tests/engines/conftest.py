import pytest

from tests.engines.contract import ENGINES


@pytest.fixture(params=sorted(ENGINES))
def make(request):
    """How a federation is made on one of the engines."""
    return ENGINES[request.param]
