"""Exports as `nsys export --type sqlite` writes them, made from tables of a trace by the documented schema."""

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hotlap.trace.tables import Trace

SCHEMA = {
    "StringIds": "id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL",
    "META_DATA_EXPORT": "name TEXT NOT NULL, value TEXT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INTEGER, utcTime TEXT, localTime TEXT",
    "TARGET_INFO_GPU": "vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, totalMemory INTEGER, smCount INTEGER, "
    "computeMajor INTEGER, computeMinor INTEGER",
    "ThreadNames": "nameId INTEGER NOT NULL, priority INTEGER, globalTid INTEGER",
    "ENUM_CUDA_MEM_KIND": "id INTEGER NOT NULL PRIMARY KEY, name TEXT, label TEXT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, "
    "globalTid INTEGER, correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL, registersPerThread INTEGER NOT NULL, "
    "gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER, "
    "staticSharedMemory INTEGER, dynamicSharedMemory INTEGER, graphNodeId INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL, srcKind INTEGER, dstKind INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMSET": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "value INTEGER, bytes INTEGER NOT NULL, memKind INTEGER",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, "
    "syncType INTEGER NOT NULL",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": "start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, "
    "contextId INTEGER NOT NULL, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, graphId INTEGER",
    "NVTX_EVENTS": "start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, "
    "endGlobalTid INTEGER, textId INTEGER, domainId INTEGER",
}
KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
WAYS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
SYNCS = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
VM = 3 << 48
N = "NVTX_EVENTS"
K, R, C, F, S, G = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "RUNTIME", "MEMCPY", "MEMSET", "SYNCHRONIZATION", "GRAPH_TRACE")
)


class Export:
    """An export under way. Rows are given as dicts; tables are made as they are first needed, as nsys does."""

    def __init__(self, path: Path) -> None:
        self.database = sqlite3.connect(path)
        self.ids: dict[str, int] = {}
        self.made: set[str] = set()

    def string(self, text: str) -> int:
        return self.ids.setdefault(text, len(self.ids) + 1)

    def add(self, table: str, rows: Iterable[dict[str, Any]]) -> None:
        if table not in self.made:
            self.made.add(table)
            self.database.execute(f"create table {table} ({SCHEMA[table]})")
        for row in rows:
            names, marks = ", ".join(row), ", ".join("?" * len(row))
            self.database.execute(f"insert into {table} ({names}) values ({marks})", list(row.values()))

    def close(self) -> None:
        self.add("StringIds", ({"id": number, "value": text} for text, number in self.ids.items()))
        self.database.commit()
        self.database.close()


def tid(process: int, thread: int = 0) -> int:
    return VM | process << 24 | thread


def call(export: Export, name: str, start: int, end: int, correlation: int, process: int = 7, thread: int = 7) -> None:
    row = {"start": start, "end": end, "eventClass": 0, "globalTid": tid(process, thread), "returnValue": 0}
    export.add(R, [{**row, "correlationId": correlation, "nameId": export.string(name)}])


def kernel(export: Export, name: str, start: int, end: int, correlation: int, process: int = 7, **more: Any) -> None:
    row = _work(start, end, correlation, process) | {"registersPerThread": 32}
    export.add(K, [{**row, "demangledName": export.string(name), "shortName": export.string(name[:8]), **more}])


def nvtx(export: Export, name: str, start: int, end: int | None, kind: int = 59, **more: Any) -> None:
    row = {"start": start, "end": end, "eventType": kind, "text": name, "globalTid": tid(7, 7)}
    export.add(N, [{**row, **more}])


def _work(start: int, end: int, correlation: int, process: int = 7) -> dict[str, Any]:
    places = {"deviceId": 0, "contextId": 1, "streamId": 7}
    return {"start": start, "end": end, **places, "correlationId": correlation, "globalPid": tid(process)}


def convert(traces: Sequence[Trace], path: Path) -> None:
    """Traces of one rank each as one export: process 101 for the first, 102 for the next, all on device 0, 1, ..."""
    export = Export(path)
    export.add("META_DATA_EXPORT", [{"name": "EXPORT_PRODUCT_VERSION", "value": "2025.3.1.90"}])
    export.add("TARGET_INFO_SESSION_START_TIME", [{"utcEpochNs": traces[0].base_ns}])
    for number, label in enumerate(KINDS):
        export.add("ENUM_CUDA_MEM_KIND", [{"id": number, "label": label}])
    for gpu in traces[0].gpus:
        export.add("TARGET_INFO_GPU", [{"vmId": 0, "id": gpu.id, "name": gpu.name}])
    for process, trace in enumerate(traces, 101):
        _host(export, trace, process)
        _device(export, trace, process)
    export.close()


def _host(export: Export, trace: Trace, process: int) -> None:
    threads = {key: number for number, key in enumerate(dict.fromkeys(trace.host["tid"].to_list()), 1)}
    for row in trace.host.iter_rows(named=True):
        end = row["start"] + row["dur"]
        thread = tid(process, threads[row["tid"]])
        if row["cat"] == "runtime":
            call(export, f"{row['name']}_v7000", row["start"], end, row["correlation"], process, threads[row["tid"]])
        elif row["cat"] == "annotation":
            nvtx(export, row["name"], row["start"], end, globalTid=thread)
        elif row["cat"] == "op":
            sequence = f", seq = {row['sequence']}" if row["sequence"] >= 0 else ""
            nvtx(export, f"{row['name']}{sequence}, op_id = 3", row["start"], end, globalTid=thread)


def _device(export: Export, trace: Trace, process: int) -> None:
    for row in trace.device.iter_rows(named=True):
        places = {"deviceId": row["device"], "contextId": 1, "streamId": row["stream"], "globalPid": tid(process)}
        common = {
            "start": row["start"],
            "end": row["start"] + row["dur"],
            "correlationId": row["correlation"],
            **places,
        }
        name = row["name"]
        if row["cat"] == "kernel":
            number = export.string(name)
            sizes = {"gridX": row["blocks"], "gridY": 1, "gridZ": 1, "blockX": row["threads"], "blockY": 1, "blockZ": 1}
            export.add(K, [{**common, "demangledName": number, "shortName": number, "registersPerThread": 32, **sizes}])
        elif row["cat"] == "memcpy":
            way, ends = name.removeprefix("Memcpy ").rstrip(")").split(" (")
            source, target = (KINDS.index(end) for end in ends.split(" -> "))
            kinds = {"copyKind": WAYS[way], "srcKind": source, "dstKind": target}
            export.add(C, [{**common, "bytes": max(row["bytes"], 0), **kinds}])
        elif row["cat"] == "memset":
            export.add(F, [{**common, "value": 0, "bytes": max(row["bytes"], 0), "memKind": 2}])
        elif row["cat"] == "sync":
            export.add(S, [{**common, "syncType": SYNCS[name]}])
