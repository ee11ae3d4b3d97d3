"""Findings of what a loader's workers deliver and hold."""

import msgspec

from hotlap.diagnose.findings import input as waiting
from hotlap.diagnose.findings import repeated_data, worker_copies
from hotlap.diagnose.findings._base import Measured
from hotlap.records.run import Facts, LoaderFacts, Phases

LOADER = LoaderFacts(
    dataset="Stream", iterable=True, workers=4, batches=30, training=True, repeated_rows=16, file="train.py", line=7,
    function="Stream.__iter__",
)  # fmt: skip


def measured(loader: LoaderFacts) -> Measured:
    facts = Facts(pid=1, rank=0, world=1, argv=("train.py",), python="3.12", torch="2.13.0", loaders=(loader,))
    return Measured(10.0, Phases(data=5.0, forward=5.0), None, None, facts)


def changed(**changes: object) -> Measured:
    return measured(msgspec.structs.replace(LOADER, **changes))


def test_repeated_data() -> None:
    found = repeated_data.find(measured(LOADER))
    assert found is not None and found.share == 0 and found.where is not None and found.where.line == 7
    assert "16 rows" in found.evidence
    for change in ({"repeated_rows": 0}, {"workers": 1}, {"iterable": False}):
        assert repeated_data.find(changed(**change)) is None


def test_worker_copies() -> None:
    copied = {"objects": 3_000_000, "objects_in": "rows", "worker_growth_bytes": 200 * 2**20}
    found = worker_copies.find(changed(**copied))
    assert found is not None and "'rows'" in found.evidence and "200 MiB" in found.evidence
    for change in ({"workers": 0}, {"objects": 0}, {"worker_growth_bytes": 2**20}):
        assert worker_copies.find(changed(**{**copied, **change})) is None


def test_waiting_names_the_levers_that_what_was_seen_leaves_open() -> None:
    for changes, levers in [
        ({"iterable": True}, ("loader-workers",)),
        ({"iterable": False, "default_collate": True}, ("loader-workers", "sample-cache")),
        ({"iterable": False, "default_collate": True, "draws": True}, ("loader-workers",)),
        (
            {"iterable": False, "default_collate": True, "holds_tensors": True},
            ("loader-workers", "batch-fetch", "sample-cache"),
        ),
    ]:
        found = waiting.find(changed(**changes))
        assert found is not None and found.levers == levers
