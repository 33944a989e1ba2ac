from pathlib import Path

import pytest

from tests.compat.golden import sets
from vitrail.model import ConceptLM, load_model


@pytest.fixture(params=sets(), ids=lambda path: path.name)
def directory(request: pytest.FixtureRequest) -> Path:
    """One set of recorded outputs."""
    assert isinstance(request.param, Path)
    return request.param


@pytest.fixture
def model(directory: Path) -> ConceptLM:
    """The checkpoint of the set, in fp32."""
    return load_model(directory / "checkpoint")
