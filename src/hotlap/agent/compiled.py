"""What torch.compile made of the script's functions, as its own records of the last compilations say.

Read once, when facts are written: nothing is hooked into the compiler. A graph break ends a function's graph; the rest
of it is compiled as another function, whose name tells the line at which it goes on (`torch_dynamo_resume_in_f_at_11`).
A break that the compiler can't go on after (inside a loop) leaves the whole function to eager mode.
"""

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any, Final

from .lines import HOTLAP
from .torch_internals import compilations, compile_pools, skip_frame

LONGEST: Final = 300
MOST: Final = 64
RESUMED: Final = re.compile(r"^torch_dynamo_resume_in_(.+)_at_(\d+)$")
CALL_THE_USERS: Final = tuple(f"hotlap.agent.{name}" for name in ("hooks", "seams", "loaders", "lines", "profile"))
"""Modules with wrappers around functions of torch's, in which the script's run."""


def hide_from_compiler(name: str) -> None:
    """Have torch.compile pass over the functions of a module of hotlap's, and over what they call (the standard
    library), unless that may be the script's: after a graph break it looks at whatever runs next."""
    module, calls_the_users = sys.modules[name], name.startswith(CALL_THE_USERS)
    for owner in [module, *(kind for kind in vars(module).values() if isinstance(kind, type))]:
        if owner is module or owner.__module__ == name:
            for value in vars(owner).values():
                function = getattr(value, "fget", getattr(value, "__func__", value))
                function = getattr(function, "__wrapped__", function)  # of a context manager
                if isinstance(function, FunctionType) and function.__code__.co_filename == module.__file__:
                    _hide(function.__code__, calls_the_users)


def _hide(code: CodeType, calls_the_users: bool) -> None:
    if skip_frame(code, not calls_the_users):
        for inner in code.co_consts:
            if isinstance(inner, CodeType):
                _hide(inner, calls_the_users)


def end_compile_workers() -> None:
    """End the processes in which Inductor compiles. They start beside the script, and at its end Inductor waits for all
    of them to be ready first, 4 to 10 seconds where what they would compile was in the cache.

    Nothing of this is public, so what does not look as in torch 2.11 to 2.13 is left to end as it will.
    """
    pools, awaited = compile_pools()
    for pool in pools:
        process, lock = getattr(pool, "process", None), getattr(pool, "write_lock", None)
        if not isinstance(process, subprocess.Popen) or lock is None or not hasattr(pool, "pending_futures"):
            continue
        if all(job is awaited for job in pool.pending_futures.copy().values()):
            with lock:
                pool.running = False  # nobody wonders that it ended, or waits
            process.kill()
            process.wait()


def compiled_functions(root: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """One row for each of the script's functions that torch.compile took, in the order of their first compilation.

    root: facts of the outermost module, whose forward stands for what levers put around it and compiled with it.
    """
    rows: list[dict[str, Any]] = []
    frames: dict[str, dict[str, Any]] = {}
    every = compilations()
    within = root is not None and any(_is(root, one) for one in every)
    for one in every:
        file, name = str(getattr(one, "co_filename", None) or ""), str(getattr(one, "co_name", None) or "")
        frame = str(getattr(one, "compile_id", None) or "").rpartition("/")[0]
        if not name and frame in frames:
            _refused(frames[frame], one)
        own = file.startswith(HOTLAP)
        if not name or (own and not (root and root.get("file"))):
            continue
        resumed = RESUMED.match(name)
        at = int(resumed[2]) if resumed else getattr(one, "co_firstlineno", None) or 0
        if own and root:
            file, name, at, resumed = root["file"], root["function"].rpartition(".")[2], root["line"] or 0, None
        row = frames[frame] = _row(rows, file, resumed[1] if resumed else name, at, bool(resumed))
        if own and within:  # what a lever put around it is no graph of it
            _took(row, one)
        else:
            _count(row, one, at if resumed else None)
    return rows[:MOST]


def _is(root: Mapping[str, Any], one: Any) -> bool:
    """Whether a compilation is of the outermost module's own forward."""
    name, line = root["function"].rpartition(".")[2] if root.get("function") else "", root.get("line")
    code = [getattr(one, f"co_{part}", None) for part in ("filename", "name", "firstlineno")]
    return code == [root.get("file"), name, line]


def _row(rows: list[dict[str, Any]], file: str, function: str, line: int, inside: bool) -> dict[str, Any]:
    """The row of the function that begins at a line, or that a line is `inside` of; a new one where there is none."""
    alike = [row for row in rows if row["file"] == file and row["function"] == function]
    known = [row for row in alike if (row["line"] <= line if inside else row["line"] == line)]
    if known:
        return max(known, key=lambda row: int(row["line"]))
    row = {"file": file, "line": line, "function": function, "graphs": 0, "recompiles": 0, "breaks": [], "seconds": 0.0}
    rows.append(row)
    return row


def _count(row: dict[str, Any], one: Any, resumed_at: int | None) -> None:
    """Add a compilation to its function's row."""
    _took(row, one)
    skipped = getattr(one, "cudagraph_skip_reason", None)
    if skipped:
        row["without_graph"] = str(skipped).split("\n", 1)[0][:LONGEST]
    if resumed_at is not None and resumed_at not in row["breaks"] and len(row["breaks"]) < MOST:
        row["breaks"].append(resumed_at)
    if getattr(one, "recompile_reason", None):
        row["recompiles"] += 1
        row["reason"] = str(one.recompile_reason)[:LONGEST]
        row["limit"] = _limit(one)
    if getattr(one, "fail_type", None):
        reason = getattr(one, "fail_reason", None) or one.fail_type
        row["failed"] = _first_lines(str(reason))[:LONGEST]
        row["failed_at"] = getattr(one, "fail_user_frame_lineno", None)
        file = str(getattr(one, "fail_user_frame_filename", None) or "")
        row["failed_in"] = "" if file == row["file"] else file
    else:
        row["graphs"] += 1


def _first_lines(reason: str) -> str:
    """The first, and what it announces: `backend='inductor' raised:` says nothing by itself."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    return " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])


def _took(row: dict[str, Any], one: Any) -> None:
    row["seconds"] = round(row["seconds"] + (getattr(one, "entire_frame_compile_time_s", None) or 0.0), 3)


def _refused(row: dict[str, Any], one: Any) -> None:
    """A compilation that was not begun: was it since the function has as many graphs as it may?"""
    if "exceeding the recompile_limit" in str(getattr(one, "fail_reason", None)):
        row["reached"] = True


def _limit(one: Any) -> int:
    """The limit of graphs that was in force in a compilation; 0 where its record does not hold it."""
    try:
        limit = json.loads(one.dynamo_config).get("recompile_limit")
    except (AttributeError, TypeError, ValueError):
        return 0
    return limit if isinstance(limit, int) and limit > 0 else 0
