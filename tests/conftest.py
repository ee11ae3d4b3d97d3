"""What every test stands on."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from agent.harness import Runner
from hotlap.levers.compiler import _create_graph

os.environ.pop("HOTLAP_DB", None)  # runs of tests are not remembered
# A suite started in the background of a shell inherits an ignored SIGINT, and so would every command it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Machines are shared: a time says nothing. The same examples each time: what is found by chance is looked for with
# `pytest --hypothesis-profile search`, not in somebody else's change.
settings.register_profile("shared", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=1000)
settings.load_profile("shared")


SLOW = ("end_to_end", "test_frauds", "test_getting_in", "test_stopping", "test_zoo")
"""In this order, before the others: whole tunes, which mostly wait, so that another worker does the rest meanwhile, and
what takes seconds a test, so that no worker is left with it at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first."""
    items.sort(key=lambda item: next((at for at, name in enumerate(SLOW) if name in item.nodeid), len(SLOW)))


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """One a session: it keeps a process that has torch, and what scripts print without hotlap."""
    made = Runner(tmp_path_factory.mktemp("runs"))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def compilers_fail_aloud() -> Iterator[None]:
    """Once something was compiled, levers have later failures pass; not from one test to the next."""
    yield
    if (config := sys.modules.get("torch._dynamo.config")) is not None:
        config.suppress_errors = False  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the files of the tests ask of gradients is not asked by the model of one of them."""
    monkeypatch.setattr(_create_graph, "_files", list)
