"""Broken traces end in a Trace or a RecordError, and soon. `benchmarks/trace_fuzz.py` reads 100,000 of them."""

import io

import pytest

from hotlap.records.errors import RecordError
from hotlap.trace import decode, source
from hotlap.trace.read import read_stream
from hotlap.trace.steps import find_windows
from hotlap.trace.tables import TABLES
from hotlap.trace.view import View

from . import mutations

FILES = 400


@pytest.mark.timeout(120)
@pytest.mark.parametrize("share", range(4))
def test_broken_traces(share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are so small that the files are cut into many; half of the files are read at the usual size."""
    whole = list(mutations.excerpts().values())
    read = refused = 0
    for seed in range(share * FILES // 4, (share + 1) * FILES // 4):
        monkeypatch.setattr(source, "BLOCK", 4 << 10 if seed % 2 else 4 << 20)
        monkeypatch.setattr(decode, "PART", 1 << 10 if seed % 2 else 128 << 10)
        _, text = mutations.mutated(seed, whole)
        try:
            trace = read_stream(io.BytesIO(text), "broken", processes=1)
        except RecordError as error:
            assert "broken" in str(error)
            refused += 1
            continue
        read += 1
        assert {name: dict(getattr(trace, name).schema) for name in TABLES} == TABLES
        assert trace.host["start"].is_sorted()
        assert trace.device["start"].is_sorted()
        assert (trace.host["parent"] < trace.host.with_row_index()["index"]).all()
        assert (trace.device["launch"] < max(1, len(trace.host))).all()
        window, _ = find_windows(trace)
        assert (View(trace, window).work["from"] <= View(trace, window).work["to"]).all()
    assert read > 50
    assert refused > 5


def test_the_same_seed_gives_the_same_file() -> None:
    whole = list(mutations.excerpts().values())
    first, second = ([mutations.mutated(seed, whole) for seed in range(20)] for _ in range(2))
    assert first == second
