"""Reading: every fact of Kineto's format, and every way in which a file may be broken."""

# ruff: noqa: E501 - events as JSON are long

import gzip
import io
import json
import os
import re
import resource
import subprocess
import sys
import textwrap
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotlap.records.errors import RecordError
from hotlap.trace import decode, read, source
from hotlap.trace.read import read_stream
from hotlap.trace.tables import TABLES, Gpu, Trace

from . import mutations

TABLE_NAMES = tuple(TABLES)


def op(name: str = "aten::mm", ts: str = "10.000", dur: str = "2.000", **more: str) -> str:
    fields = {"ph": '"X"', "cat": '"cpu_op"', "name": f'"{name}"', "pid": "1", "tid": "2", "ts": ts, "dur": dur, **more}
    return "{" + ", ".join(f'"{key}": {value}' for key, value in fields.items()) + "}"


def kernel(name: str = "k", ts: str = "20.000", dur: str = "3.000", args: str = '"correlation": 5', **more: str) -> str:
    return op(name, ts, dur, **{"cat": '"kernel"', "pid": "0", "tid": "7", "args": "{" + args + "}", **more})


def document(*events: str, before: str = "", after: str = "", between: str = ",\n") -> str:
    return "{" + before + '"traceEvents": [\n' + between.join(events) + "\n]" + after + "}"


def load(text: str | bytes, processes: int = 1) -> Trace:
    return read_stream(io.BytesIO(text.encode() if isinstance(text, str) else text), "made", processes=processes)


def whole(text: str | bytes) -> Trace:
    """Read, with nothing lost or repaired."""
    trace = load(text)
    assert (trace.losses.events, trace.losses.repaired, trace.losses.why) == (0, 0, ())
    return trace


def assert_same(one: Trace, other: Trace) -> None:
    for name in TABLE_NAMES:
        assert getattr(one, name).equals(getattr(other, name), null_equal=True), name
    for name in ("base_ns", "rank", "gpus", "schema_version"):
        assert getattr(one, name) == getattr(other, name), name


# times


@given(st.lists(st.integers(-8_700_000_000_000_000, 8_700_000_000_000_000), min_size=1, max_size=50))
@settings(max_examples=100)
def test_microseconds_with_three_decimals_are_exact(times: list[int]) -> None:
    texts = [f"{'-' if t < 0 else ''}{abs(t) // 1000}.{abs(t) % 1000:03d}" for t in times]
    trace = whole(document(*(op(ts=text, dur=texts[0].lstrip("-")) for text in texts)))
    assert sorted(times) == trace.host["start"].to_list()
    assert set(trace.host["dur"].to_list()) == {abs(times[0])}


@given(st.lists(st.integers(1_600_000_000_000_000_000, 1_900_000_000_000_000_000), min_size=1, max_size=20))
@settings(max_examples=50)
def test_epoch_microseconds_are_read_as_doubles(times: list[int]) -> None:
    trace = whole(document(*(kernel(ts=f"{t // 1000}.{t % 1000:03d}") for t in times)))
    found = trace.device["start"].to_list()
    assert all(abs(one - other) <= 125 for one, other in zip(sorted(times), found, strict=True))
    assert trace.base_ns == 0


@pytest.mark.parametrize(("text", "ns"), [("5", 5000), ("1.5e3", 1_500_000), ("0.0004", 0), ("0.0006", 1), ("-0", 0)])
def test_other_ways_to_write_a_time(text: str, ns: int) -> None:
    assert whole(document(op(ts=text))).host["start"].to_list() == [ns]


def test_times_that_no_trace_has_are_lost() -> None:
    for text in ("1e300", "1e400", "1e999999999", "9" * 5000, "NaN", "Infinity", "null", "true", "[]", '"x"'):
        trace = load(document(op("good"), op("bad", ts=text)))
        assert trace.host["name"].to_list() == ["good"], text
        assert trace.losses.events == 1, text


# what events mean


def test_every_column() -> None:
    text = document(
        op("outer", "100.000", "50.000", args='{"External id": 3, "Sequence number": 8, "Fwd thread id": 2,'
           ' "Input Dims": [[2, 3], []], "Input type": ["float", ""], "Input Strides": [[3, 1], []], "Concrete Inputs": ["", "1"]}'),
        op("cudaLaunchKernel", "110.000", "5.000", cat='"cuda_runtime"', args='{"External id": 3, "correlation": 70}'),
        op("t.py(3): f", "101.000", "40.000", cat='"python_function"', args='{"Python id": 5, "Python parent id": null, "Python module id": 1}'),
        op("ProfilerStep#1", "99.000", "90.000", cat='"user_annotation"'),
        kernel("gemm", "130.000", "7.500", '"External id": 3, "correlation": 70, "device": 1, "context": 1, "stream": 9, "grid": [2, 3, 4],'
               ' "block": [32, 2, 1], "registers per thread": 64, "shared memory": 1024, "est. achieved occupancy %": 25, "graph node id": 12, "graph id": 2'),
        op("Memcpy HtoD", "140.000", "1.000", cat='"gpu_memcpy"', pid="1", tid="9", args='{"device": 1, "stream": 9, "correlation": 71, "bytes": 4096}'),
        op("Memset", "142.000", "1.000", cat='"gpu_memset"', args='{"device": 1, "stream": 9, "correlation": 72, "bytes": 16}'),
        op("note", "130.000", "12.000", cat='"gpu_user_annotation"', args='{"device": 1, "stream": 9, "External id": 4}'),
        op("sync", "150.000", "1.000", cat='"cuda_sync"', args='{"device": 1, "stream": 4294967295}'),
        '{"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": 105.5,'
        ' "args": {"Addr": 18446744073709551615, "Bytes": -512, "Device Id": 1, "Device Type": 1, "Total Allocated": 10, "Total Reserved": 20}}',
        before='"schemaVersion": 1, "baseTimeNanoseconds": 1790857026000000000, "record_shapes": 1, "with_stack": 1,'
        ' "deviceProperties": [{"id": 1, "name": "H100", "totalGlobalMem": 85, "computeMajor": 9, "computeMinor": 0, "numSms": 132}], ',
    )  # fmt: skip
    trace = whole(text)
    assert {name: dict(getattr(trace, name).schema) for name in TABLE_NAMES} == TABLES
    host = trace.host.rows(named=True)
    assert [row["name"] for row in host] == ["ProfilerStep#1", "outer", "t.py(3): f", "cudaLaunchKernel"]
    assert [row["cat"] for row in host] == ["annotation", "op", "python", "runtime"]
    assert [(row["parent"], row["depth"]) for row in host] == [(-1, 0), (0, 1), (1, 2), (2, 3)]
    assert host[1] == {
        "name": "outer", "cat": "op", "pid": 1, "tid": 2, "start": 100_000, "dur": 50_000, "external": 3, "correlation": -1,
        "sequence": 8, "fwd_tid": 2, "shapes": 0, "parent": 0, "depth": 1,
    }  # fmt: skip
    device = trace.device.rows(named=True)
    assert [row["cat"] for row in device] == ["kernel", "annotation", "memcpy", "memset", "sync"]
    assert device[0] == {
        "name": "gemm", "cat": "kernel", "device": 1, "context": 1, "stream": 9, "start": 130_000, "dur": 7_500, "correlation": 70,
        "external": 3, "bytes": -1, "blocks": 24, "threads": 64, "registers": 64, "shared_memory": 1024,
        "graph_node": 12, "graph": 2, "collective": -1, "launch": 3, "op": 1,
    }  # fmt: skip
    assert [row["bytes"] for row in device] == [-1, -1, 4096, 16, -1]
    assert [(row["launch"], row["op"]) for row in device[1:]] == [(-1, -1)] * 4
    assert trace.work["name"].to_list() == ["gemm", "Memcpy HtoD", "Memset"]
    assert trace.memory.rows() == [(105_500, -1, -512, 1, 1, 10, 20)]
    assert trace.shapes.rows() == [("[[2, 3], []]", '["float", ""]', "[[3, 1], []]", '["", "1"]')]
    assert trace.base_ns == 1790857026000000000
    assert trace.gpus == (Gpu(1, "H100"),)
    assert trace.schema_version == "1"


def test_collectives_and_where_the_job_is() -> None:
    args = (
        '"correlation": 5, "Collective name": "allreduce", "dtype": "BFloat16", "In msg nelems": 7, "Out msg nelems": 8, "Group size": 4,'
        ' "Process Group Ranks": "[0, 1, 2, 3]", "Process Group Name": "0", "Process Group Description": "default_pg",'
        ' "Comms Id": 98765432109876543210'
    )
    info = '"distributedInfo": {"backend": "nccl", "rank": 2, "world_size": 4, "pg_config": [{"pg_name": "0"}, {"pg_name": "1"}]}'
    events = (
        kernel("ncclDevKernel_AllReduce", "20.0", "3.0", args),
        kernel("ncclDevKernel_AllReduce", "30.0", "3.0", args),
    )
    for text in (
        document(*events, before=info + ", "),
        document(*events, after=", " + info),
        document(*events, after=",\n  " + info + "\n"),
    ):
        trace = whole(text)
        assert trace.rank == 2
        row = ("allreduce", "BFloat16", 7, 8, 4, "[0, 1, 2, 3]", "0", "default_pg", "98765432109876543210")
        assert trace.collectives.rows() == [row]
        assert trace.device["collective"].to_list() == [0, 0]


def test_names_of_other_writers() -> None:
    trace = whole(
        document(
            op("a", cat='"cpu_op"', args='{"External id": 4}'),
            op("hipLaunchKernel", "11.0", "1.0", cat='"hip_runtime"', args='{"correlation": 5, "External id": 4}'),
            kernel("k"),
            op(
                "copy",
                "30.0",
                cat='"gpu_memcpy"',
                args='{"bytes": "12", "stream": "7", "device": 0, "correlation": 6.0}',
            ),
            '{"ph": "s", "cat": "async_gpu", "id": 5, "pid": 1, "tid": 2, "ts": 11.0, "name": "x"}',
            op("b", "40.0", cat='"mtia_runtime"'),
        )
    )
    assert trace.host["cat"].to_list() == ["op", "runtime"]
    assert trace.device["cat"].to_list() == ["kernel", "memcpy"]
    assert trace.device["launch"].to_list() == [1, -1]
    assert trace.device["op"].to_list() == [0, -1]
    assert trace.device.row(1, named=True)["bytes"] == 12
    assert trace.device.row(1, named=True)["correlation"] == 6


def test_what_is_no_event_of_the_job() -> None:
    trace = whole(
        document(
            op(),
            '{"ph": "X", "cat": "Trace", "ts": 1.0, "dur": 99.0, "pid": "Spans", "tid": "PyTorch Profiler", "name": "PyTorch Profiler (0)", "args": {"Op count": 0}}',
            '{"name": "Record Window End", "ph": "i", "s": "g", "pid": "", "tid": "", "ts": 99.0}',
            '{"name": "process_name", "ph": "M", "ts": 1.0, "pid": 1, "tid": 0, "args": {"name": "python3"}}',
            '{"name": "thread_name", "ph": "M", "ts": 1.0, "pid": 1, "tid": 2, "args": {"name": "thread 2 (main)"}}',
            '{"name": "process_labels", "ph": "M", "ts": 1.0, "pid": "Spans", "tid": "t", "args": {"labels": "CPU"}}',
            '{"ph": "C", "name": "GPU 0 Utilization", "pid": 0, "ts": 5.0, "args": {"util": 0.5}}',
            '{"ph": "f", "cat": "ac2g", "id": 5, "pid": 1, "tid": 2, "ts": 11.0, "name": "ac2g", "bp": "e"}',
        )
    )
    assert len(trace.host) == 1
    assert len(trace.device) == 0
    assert trace.threads.rows()[:2] == [(1, 0, "python3", "", ""), (1, 2, "", "thread 2 (main)", "")]
    assert trace.threads["labels"].to_list()[2] == "CPU"


def test_threads_named_by_texts_are_told_apart() -> None:
    trace = whole(document(*(op(tid=tid, ts=str(i)) for i, tid in enumerate(['"a"', '"b"', '"a"', "7", "-1"]))))
    tids = trace.host["tid"].to_list()
    assert tids[0] == tids[2] < -1
    assert tids[1] < -1
    assert tids[1] != tids[0]
    assert tids[3:] == [7, -1]


def test_correlation_0_and_minus_1_link_nothing() -> None:
    calls = [op("cudaLaunchKernel", cat='"cuda_runtime"', args=f'{{"correlation": {n}}}') for n in (0, -1, 5)]
    work = [kernel(ts=str(20 + n), args=f'"correlation": {n}') for n in (0, -1, 5, 6)]
    trace = whole(document(*calls, *work))
    assert dict(zip(trace.device["correlation"].to_list(), trace.device["launch"].to_list(), strict=True)) == {
        0: -1,
        -1: -1,
        5: 2,
        6: -1,
    }


def test_events_out_of_order_and_duplicate_keys() -> None:
    trace = whole(document(op("late", "50.0"), op("early", "1.0"), op("twice", "7.0", tid='2, "tid": 3')))
    assert trace.host["name"].to_list() == ["early", "twice", "late"]
    assert trace.host["tid"].to_list() == [2, 3, 2]


# how files are written


@pytest.fixture(scope="module", params=mutations.EXCERPTS)
def real(request: pytest.FixtureRequest) -> bytes:
    """A few events of each kind of a real trace, as torch wrote them."""
    return (mutations.DATA / f"{request.param}.json").read_bytes()


def test_real_excerpts_against_plain_json(real: bytes) -> None:
    assert_as_json(whole(real), json.loads(real, parse_float=Decimal))


def assert_as_json(trace: Trace, document: dict[str, Any]) -> None:
    """Row by row, what a plain reading of the JSON gives."""
    events = document["traceEvents"]
    kinds = {"cpu_op": "op", "user_annotation": "annotation", "cuda_runtime": "runtime", "cuda_driver": "runtime",
             "python_function": "python", "overhead": "overhead"}  # fmt: skip
    host = []
    for event in events:
        if event["ph"] == "X" and event["cat"] in kinds:
            args = event.get("args", {})
            ids = [-1 if (v := args.get(k, -1)) is None else v for k in ("External id", "correlation", "Sequence number", "Fwd thread id")]  # fmt: skip
            if kinds[event["cat"]] in {"op", "annotation"}:
                ids[1] = -1
            shapes = json.dumps(args.get("Input Dims"))
            host.append((int(event["ts"] * 1000), -int(event.get("dur", 0) * 1000), event["name"], kinds[event["cat"]], event["pid"], event["tid"], *ids, shapes))  # fmt: skip
    dims = [json.dumps(json.loads(text)) for text in trace.shapes["dims"]]
    found = [
        (*row[:-1], dims[row[-1]] if row[-1] >= 0 else "null")
        for row in trace.host.select(
            "start", -pl.col("dur"), "name", "cat", "pid", "tid", "external", "correlation", "sequence", "fwd_tid", "shapes"
        ).rows()
    ]  # fmt: skip
    assert sorted(found) == sorted(host)
    assert [row[:2] for row in found] == sorted(row[:2] for row in host)
    device = []
    for event in events:
        if event["ph"] == "X" and event["cat"] in {
            "kernel",
            "gpu_memcpy",
            "gpu_memset",
            "gpu_user_annotation",
            "cuda_sync",
        }:
            args = event["args"]
            blocks, threads = (int(np.prod(args[k])) if k in args else -1 for k in ("grid", "block"))
            device.append((int(event["ts"] * 1000), int(event["dur"] * 1000), event["name"], args.get("device", event["pid"]), args.get("stream", event["tid"]), args.get("correlation", -1), args.get("External id", -1), args.get("bytes", -1), blocks, threads, args.get("graph node id", -1)))  # fmt: skip
    columns = [
        "start",
        "dur",
        "name",
        "device",
        "stream",
        "correlation",
        "external",
        "bytes",
        "blocks",
        "threads",
        "graph_node",
    ]
    assert sorted(trace.device.select(columns).rows()) == sorted(device)
    memory = [
        (int(e["ts"] * 1000), *(e["args"].get(k, -1) for k in ("Addr", "Bytes", "Device Type", "Device Id", "Total Allocated", "Total Reserved")))
        for e in events
        if e["name"] == "[memory]"
    ]  # fmt: skip
    assert trace.memory.rows() == sorted(memory, key=lambda row: row[0])
    by_correlation = {}
    for row, (cat, correlation) in enumerate(trace.host.select("cat", "correlation").rows()):
        if cat == "runtime":
            by_correlation.setdefault(correlation, row)
    for cat, correlation, launch in trace.device.select("cat", "correlation", "launch").rows():
        wanted = by_correlation.get(correlation, -1) if cat != "annotation" and correlation > 0 else -1
        assert launch == wanted


def dumps(document: Any, **how: Any) -> str:
    """As `json.dumps`, but numbers keep their text."""
    marked = json.dumps(document, default=lambda number: f"\0{number}", **how)
    return re.sub(r'"\\u0000([^"]*)"', r"\1", marked)


REDUMPS: dict[str, dict[str, Any]] = {
    "one line": {}, "compact": {"separators": (",", ":")}, "indent 0": {"indent": 0}, "indent 1": {"indent": 1},
    "indent 2": {"indent": 2}, "indent 4": {"indent": 4}, "tabs": {"indent": "\t"}, "sorted": {"sort_keys": True},
}  # fmt: skip


@pytest.mark.parametrize("how", REDUMPS)
@pytest.mark.parametrize("block", [300, 4 << 20])
def test_written_anew(real: bytes, how: str, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is indented, and wherever it is cut. (A sorted document has its base time before the events too.)"""
    expected = whole(real)
    monkeypatch.setattr(source, "BLOCK", block)
    monkeypatch.setattr(decode, "PART", min(block, 128 << 10))
    text = dumps(json.loads(real, parse_float=Decimal), **REDUMPS[how])
    trace = whole(text)
    for name in ("dims", "types", "strides", "inputs"):  # these are texts, and spaces may differ
        assert [json.loads(t or "0") for t in trace.shapes[name]] == [
            json.loads(t or "0") for t in expected.shapes[name]
        ]
    assert trace.host.equals(expected.host)
    assert trace.device.equals(expected.device, null_equal=True)
    assert trace.memory.equals(expected.memory)
    assert trace.collectives.equals(expected.collectives)
    assert trace.threads.equals(expected.threads)
    assert (trace.base_ns, trace.gpus, trace.rank) == (expected.base_ns, expected.gpus, expected.rank)


def test_line_ends_of_windows_and_a_byte_order_mark(real: bytes) -> None:
    expected = whole(real)
    assert_same(whole(real.replace(b"\n", b"\r\n")), expected)
    assert_same(whole(b"\xef\xbb\xbf" + real), expected)


@pytest.mark.parametrize("closed", ["]", "\n]\n", "", ",\n", ",\n]"])
def test_a_bare_array(closed: str) -> None:
    trace = load("[\n" + op() + ",\n" + kernel() + closed)
    assert (len(trace.host), len(trace.device)) == (1, 1)
    assert trace.losses == type(trace.losses)()


def test_gzip(real: bytes) -> None:
    expected = whole(real)
    assert_same(whole(gzip.compress(real)), expected)
    half = len(real) // 2
    members = gzip.compress(real[:half]) + gzip.compress(real[half:]) + gzip.compress(b"") + b"\0" * 100
    assert_same(whole(members), expected)


def test_pieces_of_any_size_give_the_same(real: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = whole(real)
    for size in (7, 64, 1000):
        monkeypatch.setattr(source, "READ", size)
        monkeypatch.setattr(source, "BLOCK", 5 * size)
        monkeypatch.setattr(decode, "PART", 3 * size)
        assert_same(whole(real), expected)


# broken files


def test_what_writers_are_known_to_break() -> None:
    events = [
        op("good"),
        op('a "b" c'),  # torch 2.13: record_function('a "b" c')
        op("nan", args='{"External id": NaN, "Sequence number": Infinity}'),
        op("bare", args='{"External id": N/A, "Sequence number": 4}'),
        op("line\nbreak\ttab\x01"),
        op("half \\ud800 pair"),
        op('"'),
    ]
    trace = load(document(*events))
    names = trace.host["name"].to_list()
    assert sorted(names) == sorted(["good", 'a "b" c', "nan", "bare", "line\nbreak\ttab\x01", "half ? pair", '"'])
    assert (trace.losses.events, trace.losses.repaired) == (0, 6)
    assert trace.host.filter(pl.col("name") == "bare")["sequence"].to_list() == [4]
    json.dumps(names).encode()


def test_bytes_that_are_no_utf8() -> None:
    trace = load(document(op("good"), op("b@d")).encode().replace(b"@", b"\xff\xfe"))
    assert sorted(trace.host["name"].to_list()) == ["b��d", "good"]
    assert trace.losses.repaired == 1


def test_a_broken_event_costs_itself_only() -> None:
    events = [op(f"op{i}", str(i)) for i in range(1000)]
    events[500] = events[500].replace('"cat"', '"ca', 1)
    events[700] = '"text"'
    events[701] = "17"
    trace = load(document(*events))
    lost = {"op500"} | {"op700", "op701"}
    missing = {f"op{i}" for i in range(1000)} - set(trace.host["name"].to_list())
    assert lost <= missing
    assert len(missing) <= 5, missing  # those that are no objects take a neighbour with them
    assert trace.losses.events > 0
    assert trace.losses.why == ("some events are not JSON",)


def test_cut_at_every_byte() -> None:
    """Whole events survive, and the loss is said."""
    text = document(
        op("a"), op("b"), kernel("c"), before='"baseTimeNanoseconds": 7, ', after=', "traceName": "x"'
    ).encode()
    ends = [match.end() for match in re.finditer(rb'("tid": 2, "ts": [0-9.]+, "dur": [0-9.]+\}|\}\})', text)][:3]
    for cut in range(len(text)):
        try:
            trace = load(text[:cut])
        except RecordError as error:
            assert cut < ends[0], error
            continue
        assert len(trace.host) + len(trace.device) == sum(end <= cut for end in ends), (cut, text[:cut])
        assert trace.losses.why, cut
        assert trace.base_ns == 7
    assert load(text).losses.why == ()


def test_real_excerpts_cut_anywhere(real: bytes) -> None:
    ends = [match.end() for match in re.finditer(rb"\n  \}(?=,\n  \{|\n  \])", real)]
    events = json.loads(real)["traceEvents"]
    counted = [(e["ph"] == "X" and e["cat"] != "Trace") or e["name"] == "[memory]" for e in events]
    assert len(ends) == len(counted)
    for cut in range(0, len(real), 997):
        wanted = sum(what for what, end in zip(counted, ends, strict=True) if end <= cut)
        try:
            trace = load(real[:cut])
        except RecordError:
            assert wanted == 0
            continue
        assert len(trace.host) + len(trace.device) + len(trace.memory) == wanted, cut
        assert trace.losses.why


def test_torn_and_damaged_gzip(real: bytes) -> None:
    packed = gzip.compress(real)
    torn = load(packed[: len(packed) * 2 // 3])
    assert len(torn.host) + len(torn.device) > 0
    assert any("gzip" in why for why in torn.losses.why)
    damaged = bytearray(packed)
    damaged[-6] ^= 0xFF  # the checksum
    assert any("damaged" in why for why in load(bytes(damaged)).losses.why)
    with pytest.raises(RecordError, match="made"):
        load(packed[:12])


@pytest.mark.parametrize(
    "text",
    [
        b"", b"   \n", b"{}", b"[]", b"[", b"{", b"null", b"7", b'"traceEvents"', b'{"traceEvents": []}', b'{"traceEvents": {}}',
        b'{"traceEvents": null}', b'{"traceEvents": [', b'{"traceEvents": [1, 2, "x", null]}', b'{"traceEvents": [{}]}', b"[{}, {}]",
        b'{"a": [{"b": 1}, {"b": 2}]}', b"\x00" * 5000, bytes(range(256)) * 20, b"\x1f\x8b", b"\x1f\x8b\x08" + b"\xff" * 50,
        gzip.compress(b"", mtime=0), b"<html></html>", b"PK\x03\x04" + b"x" * 100, b"[" * 100_000, b'{"a":' * 100_000,
        b'{"traceEvents": [' + b"[" * 100_000, b'{"traceEvents": [{"ph":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'[{"name": "only metadata", "ph": "M", "pid": 1, "args": {"name": "x"}}]',
    ],
    ids=lambda text: f"{text[:12]!r} of {len(text)}",
)  # fmt: skip
def test_what_is_no_trace_is_refused_by_name(text: bytes) -> None:
    with pytest.raises(RecordError, match="made"):
        load(text)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    for path, word in ((tmp_path, "folder"), (tmp_path / "none.json", "No such file")):
        with pytest.raises(RecordError, match=word) as caught:
            read.read(path)
        assert str(path) in str(caught.value)


ODD = [
    "null",
    "true",
    "[]",
    "{}",
    '"x"',
    '""',
    "-1",
    "1.5",
    "1e400",
    "9" * 30,
    "9" * 5000,
    "[" * 500 + "]" * 500,
    '"\\ud800"',
    '"' + "x" * 70_000 + '"',
]
FIELDS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args"]
ARGS = ["External id", "correlation", "device", "stream", "grid", "block", "bytes", "est. achieved occupancy %", "Collective name", "Group size",
        "Comms Id", "Input Dims", "Input type", "Sequence number", "Python parent id", "Addr", "Total Allocated"]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_any_type_in_any_field(odd: str) -> None:
    """Neighbours stay; a field that makes no sense counts as absent, or its event as lost."""
    events = [
        event(**{key: odd})
        for key in FIELDS
        for event in (op, lambda **more: op(cat='"kernel"', **more))
        if not (key == "cat" and event is not op)
    ]
    for key in ARGS:
        for category in ("cpu_op", "cuda_runtime", "kernel", "gpu_memcpy", "python_function"):
            events.append(op(cat=f'"{category}"', args=f'{{"{key}": {odd}}}'))
        events.append(f'{{"ph": "i", "name": "[memory]", "ts": 1.0, "args": {{"{key}": {odd}}}}}')
    for event in events:
        trace = load(document(op("one"), event, kernel("two")))
        assert "one" in trace.host["name"].to_list()
        assert "two" in trace.device["name"].to_list()
    together = load(document(*events, op("one")))
    assert "one" in together.host["name"].to_list()


def test_huge_strings_and_numbers() -> None:
    long = "x" * (40 << 20)
    assert whole(document(op("a"), op(long), kernel("b"))).host["name"].str.len_bytes().max() == len(long)
    with pytest.raises(RecordError, match="no end of an event"):
        load(document(op("a"), op("x" * (80 << 20))))
    with pytest.raises(RecordError, match="traceEvents"):
        load('{"a": "' + "x" * (70 << 20))


def test_odd_text_does_not_take_forever() -> None:
    """Each of these is quadratic for a careless regular expression."""
    for junk in (
        "} " + " " * 300_000,
        "}]" * 300_000,
        "},\n{" * 100_000,
        '"name": "' * 50_000,
        '{"name": "' * 50_000,
        '{"ph": "X", "name": "a", "args": {"a": [{}], "a": ' * 2_000,
        "\\" * 300_000,
        '{"a": "}, {\\"ph\\": "},' * 20_000,
    ):
        for closed in ("", "\n]}"):
            trace = load('{"traceEvents": [\n' + op("a") + ",\n{" + junk + closed)
            assert trace.host["name"].to_list()[:1] == ["a"]


# memory and processes


def run_limited(code: str, mebibytes: int) -> subprocess.CompletedProcess[str]:
    """In a process of its own that may not hold more."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (mebibytes << 20, mebibytes << 20))

    environ = {**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(
        command, capture_output=True, text=True, preexec_fn=limit, env=environ, check=False, timeout=240
    )


BOMB = """
    import resource, sys, zlib
    from pathlib import Path
    from hotlap.records.errors import RecordError
    from hotlap.trace.read import read
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        read(Path({path!r}), processes=1)
    except RecordError as error:
        print(error)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("filler", [b" ", op("x").encode() + b",\n", b"{}" + 62 * b" " + b",\n", b"x"])
def test_a_gzip_bomb_ends_in_bounded_memory(filler: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    squeeze = zlib.compressobj(9, wbits=31)
    begin = squeeze.compress(b'{"traceEvents": [\n' + op("x").encode() + b",\n") + squeeze.flush(zlib.Z_FULL_FLUSH)
    chunk = squeeze.compress(filler * ((1 << 20) // len(filler))) + squeeze.flush(zlib.Z_FULL_FLUSH)
    path.write_bytes(begin + chunk * 1024)
    assert path.stat().st_size < 8 << 20
    done = run_limited(BOMB.format(path=str(path)), 1500)
    assert done.returncode == 0, done.stderr[-500:]
    message, grown = done.stdout.splitlines()
    assert "unpacks to more than" in message or "no end of an event" in message
    assert int(grown) < 900


def many(count: int) -> str:
    events = []
    for i in range(count):
        args = f'{{"External id": {i}, "Input Dims": [[{i % 9}, 4]], "Input type": ["float"]}}'
        events.append(
            op(f"op{i % 50}", f"{i * 10}.125", "4.000", tid=f'"thread {i % 3}"' if i % 7 == 0 else "2", args=args)
        )
        events.append(
            op(
                "cudaLaunchKernel",
                f"{i * 10 + 1}.000",
                "1.000",
                cat='"cuda_runtime"',
                args=f'{{"correlation": {i + 1}}}',
            )
        )
        events.append(
            kernel(
                f"k{i % 30}",
                f"{i * 10 + 5}.000",
                "3.000",
                f'"correlation": {i + 1}, "stream": 7, "Group size": {i % 5}',
            )
        )
    return document(*events)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough blocks for processes."""
    path = tmp_path_factory.mktemp("large") / "trace.json"
    path.write_text(many(6_000))
    return path


def test_processes_read_the_same(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCK", 200 << 10)
    assert large.stat().st_size > read.PARALLEL_FROM * source.BLOCK
    alone = read.read(large, processes=1)
    seen: list[int] = []
    together = read.read(large, seen.append, processes=2)
    assert_same(alone, together)
    assert alone.losses == together.losses
    assert seen[-1] == large.stat().st_size
    assert len(alone.host) == 12_000
    assert (together.device["launch"] >= 0).all()
    assert (together.device["op"] >= -1).all()


def test_a_process_that_is_killed(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCK", 200 << 10)
    monkeypatch.setattr(read, "_decode", _die)
    with pytest.raises(RecordError, match="killed"):
        read.read(large, processes=2)


def _die(block: bytes, separator: re.Pattern[bytes]) -> None:
    os.kill(os.getpid(), 9)


# torch's own exports


def test_an_export_of_this_torch_is_read_completely(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, with_stack=True, profile_memory=True
    ) as profiler:
        for _ in range(2):
            with torch.profiler.record_function("a step"):
                optimizer.zero_grad()
                model(torch.randn(4, 8)).sum().backward()
                optimizer.step()
    path = tmp_path / "trace.json"
    profiler.export_chrome_trace(str(path))
    trace, document = read.read(path), json.loads(path.read_bytes(), parse_float=Decimal)
    assert trace.losses == type(trace.losses)()
    assert_as_json(trace, document)
    assert len(trace.memory) > 10
    assert trace.base_ns == int(document["baseTimeNanoseconds"])
