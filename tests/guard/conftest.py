"""Histories of the tests, in each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from postgres_server import WHY_NOT, Server, served


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server."""
    if WHY_NOT:
        pytest.skip(WHY_NOT)
    with served() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a new history."""
    if request.param == "sqlite":
        return str(tmp_path / "history.db")
    made: Server = request.getfixturevalue("server")
    return made.database()
