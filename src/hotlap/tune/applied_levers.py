"""Which levers of a run did not take hold, and why."""

from pathlib import Path

import msgspec

from hotlap.diagnose.diagnose import diagnose
from hotlap.levers import all_levers
from hotlap.levers._base import Context
from hotlap.records.errors import NothingMeasured
from hotlap.records.run import REFUSED, LeftOut, Lever, Run
from hotlap.runs.folder import RankFolder, RunFolder


def with_applied_levers(folder: Path, run: Run) -> Run:
    """The run, with the levers that changed nothing in one of its ranks as left out. As it is where no step was
    observed. Raises RecordError."""
    ranks = RunFolder(folder).observed if run.levers else []
    missing = [_missing(rank, run) for rank in ranks]
    left = []
    for lever in run.levers:
        where = [at for at, whys in enumerate(missing) if lever.name in whys]
        if where:
            rank = ranks[where[0]]
            why = missing[where[0]][lever.name] or _by_facts(lever, folder, rank, run)
            some = f" (in rank-{rank.number}, not in all)" if len(where) < len(ranks) else ""
            left.append(LeftOut(lever=lever, why=f"{why or 'it found nothing to change'}{some}"))
    names = {one.lever.name for one in left}
    applied = tuple(lever for lever in run.levers if lever.name not in names)
    return msgspec.structs.replace(run, levers=applied, left_out=tuple(left))


def _missing(rank: RankFolder, run: Run) -> dict[str, str]:
    """Of a rank, the levers that did not take hold, and why where they said so."""
    lines = rank.levers
    out = {line.lever: line.left_out for line in lines if line.left_out is not None}
    took = {line.lever for line in lines if line.left_out is None and line.nothing is None} - out.keys()
    said = {line.lever: line.nothing for line in lines if line.nothing is not None}
    inert = {}
    if (facts := rank.facts) is not None:
        known = {name: all_levers().get(name) for name in took}
        inert = {name: why for name, lever in known.items() if lever is not None and (why := lever.inert(facts))}
    took -= inert.keys()
    said |= inert
    said |= {one.lever: one.what.removeprefix(REFUSED) for one in rank.problems if one.lever is not None} | out
    return {lever.name: said.get(lever.name, "") for lever in run.levers if lever.name not in took}


def _by_facts(lever: Lever, folder: Path, rank: RankFolder, run: Run) -> str:
    """Why a lever that said nothing can't have applied, by what was seen of the script without it."""
    known, facts = all_levers().get(lever.name), rank.facts
    if known is None or facts is None:
        return ""
    try:
        diagnosis = diagnose(folder)
    except NothingMeasured:
        return ""
    active = {one.name: one.settings for one in run.levers if one != lever}
    applies = known.applies(Context(diagnosis, facts, run.environment, active))
    return "" if applies.yes else applies.why
