"""Levers of the host's own costs: when they apply."""

import os
from typing import Any

import msgspec
import pytest
from contexts import context

from hotlap.levers import all_levers
from hotlap.levers._base import Context
from hotlap.records.run import HostFacts


def hosted(**host: Any) -> Context:
    found = context(False)
    facts = msgspec.structs.replace(found.facts, host=HostFacts(steps=50, **host))
    return Context(found.diagnosis, facts, found.environment, {})


def test_levers_of_the_host_follow_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = all_levers()["host-allocator"]
    for name in [name for name in os.environ if name.startswith(("MALLOC_", "LD_PRELOAD", "GLIBC_TUNABLES"))]:
        monkeypatch.delenv(name)
    assert "not counted" in allocator.applies(context(False)).why
    assert allocator.applies(hosted(faults=9000.0, system_ms=4.0)).yes
    assert allocator.share(hosted(faults=9000.0, system_ms=4.0)) == pytest.approx(0.4)
    assert "page faults" in allocator.applies(hosted(faults=12.0, system_ms=4.0)).why
    on_device = context(True, host=HostFacts(steps=50, faults=9000.0, system_ms=8.0))
    assert allocator.share(on_device) == pytest.approx(0.45)  # data, h2d and other: the rest the device hides
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert "MALLOC_ARENA_MAX" in allocator.applies(hosted(faults=9000.0, system_ms=4.0)).why
