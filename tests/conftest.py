"""What every test stands on."""

import signal

import pytest

# A suite started in the background of a shell inherits an ignored SIGINT, and so would every command it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that wait for whole tunes first, so that another worker does the rest meanwhile."""
    items.sort(key=lambda item: "end_to_end" not in item.nodeid)
