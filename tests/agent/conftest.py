"""One runner a session: it keeps a process that has torch, and what scripts print without hotlap."""

from collections.abc import Iterator

import pytest

from .harness import Runner


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    made = Runner(tmp_path_factory.mktemp("runs"))
    yield made
    made.close()
