"""A run folder made by hand, for tests of what reads one."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hotlap.records.diagnosis import Diagnosis, Spread
from hotlap.records.files import to_json, write_record
from hotlap.records.run import Environment, Facts, Phases, Run, Step

ENVIRONMENT = Environment(hotlap="0", python="3.11", os="Linux", cpu="x", cores=8, memory_gib=32.0)
RUN = Run(command=("python", "train.py"), cwd="/w", environment=ENVIRONMENT, status="finished", exit_code=0)
FACTS = Facts(pid=1, rank=0, world=1, argv=("train.py",), python="3.11", torch="2.13")


def folder_of(folder: Path, *ranks: tuple[Sequence[Step], Facts | None], **run: Any) -> Path:
    """A run folder with these ranks."""
    folder.mkdir(exist_ok=True)
    write_record(folder / "run.json", msgspec.structs.replace(RUN, **run))
    for number, (steps, facts) in enumerate(ranks):
        write_rank(folder / f"rank-{number}", steps, facts)
    return folder


def write_rank(rank: Path, steps: Sequence[Step], facts: Facts | None = None) -> None:
    """The records of one rank."""
    rank.mkdir(parents=True)
    write_lines(rank / "steps.jsonl", steps)
    if facts is not None:
        write_record(rank / "facts.json", facts)


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """A record a line."""
    path.write_bytes(b"".join(to_json(record) + b"\n" for record in records))


def diagnosis_of(step_ms: float = 10.0, **fields: Any) -> Diagnosis:
    """A verdict, of which a test gives what it is about."""
    spread = Spread(p10=0.9 * step_ms, p50=step_ms, p90=1.1 * step_ms)
    return Diagnosis(**{"mode": "train", "step_ms": step_ms, "spread": spread, "phases": Phases(), **fields})
