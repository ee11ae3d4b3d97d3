"""A whole tune: from a command to `tune.json` and `recipe.toml`, resumable and interruptible."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hotlap.launch.command import find_program
from hotlap.launch.environment import environment
from hotlap.launch.supervise import adopt_orphans
from hotlap.levers import all_levers
from hotlap.records.errors import HotlapError, Interrupted, RecordError, UsageError
from hotlap.records.files import new_folder, read_record, write_recipe, write_record
from hotlap.records.tune import Tune

from .recipe import recipe_of
from .search import Found, Search
from .trials import Listener, Plan, Trials


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for; kept as `request.json`, so that `--resume` needs no command again."""

    command: tuple[str, ...]
    cwd: str
    budget_s: float = 600.0
    steps: int = 400
    seconds: float = 3.0
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    seed: int = 81649


def check(request: TuneRequest) -> None:
    """Raises UsageError for unknown levers or `--allow`, CommandError for a command that can't be started."""
    known = all_levers()
    for name in (*request.only, *request.without):
        if name not in known:
            raise UsageError(f"there is no lever {name!r}; the levers are {', '.join(known)}")
    if set(request.allow) - {"semantic"}:
        raise UsageError(f"--allow takes only 'semantic', not {', '.join(request.allow)}")
    if request.steps < 12:
        raise UsageError(f"--steps {request.steps} is too few to compare trials by; give at least 12")
    if any("\ud800" <= char <= "\udfff" for word in (request.cwd, *request.command) for char in word):
        raise UsageError("the command or its folder has bytes that are no UTF-8; tune keeps both as text for --resume")
    find_program(request.command, Path(request.cwd))


def begin(folder: Path, request: TuneRequest) -> None:
    """Make the folder of a new tune. Raises RecordError where it exists or can't be written."""
    check(request)
    new_folder(folder)
    new_folder(folder / "trials")
    write_record(folder / "request.json", request)


def read_request(folder: Path) -> TuneRequest:
    """The request of an earlier tune. Raises RecordError."""
    if not (folder / "request.json").is_file():
        raise RecordError(f"{folder} holds no request.json; give --resume the folder of a tune")
    return read_record(folder / "request.json", TuneRequest)


def tune(folder: Path, request: TuneRequest, listener: Listener, resume: bool = False) -> Tune:
    """Tune the command; the folder was made by `begin`.

    Writes `tune.json`, and `recipe.toml` where levers were kept. On Ctrl-C what is known is written and returned with
    `complete` false. Raises CommandFailed, NothingMeasured, RecordError; Interrupted where nothing is known yet.
    """
    adopt_orphans()
    begun = time.monotonic()
    cwd = Path(request.cwd)
    plan = Plan(request.command, folder, environment(cwd), request.steps, request.seconds, request.seed, cwd)
    trials = Trials(plan, listener)
    if resume:
        trials.resume()
    search = Search(trials, request.budget_s, request.only, request.without, "semantic" in request.allow)
    why = ""
    try:
        found = search.run()
    except KeyboardInterrupt:
        found, why = search.found, "interrupted; the speed-up is not confirmed"
    if found.baseline is None:
        raise Interrupted(f"interrupted before the baseline was measured; `hotlap tune --resume {folder}` goes on")
    result = _record(request, plan, trials, found, why, time.monotonic() - begun)
    if result.kept:
        write_recipe(folder / "recipe.toml", recipe_of(result))
    write_record(folder / "tune.json", result)
    return result


def _record(request: TuneRequest, plan: Plan, trials: Trials, found: Found, why: str, wall_s: float) -> Tune:
    if found.baseline is None:
        raise HotlapError("a tune without a baseline has no result")
    proven = found.interval is not None and found.interval.low > 1 and bool(found.kept)
    return Tune(
        command=request.command,
        speedup=found.speedup,
        interval=found.interval,
        pairs=found.pairs,
        before_ms=found.before_ms,
        after_ms=found.after_ms,
        gain=proven,
        kept=tuple(found.kept),
        dropped=tuple(found.dropped.values()),
        parity=found.parity,
        baseline=found.baseline,
        tuned=found.tuned if found.kept else None,
        noise=found.noise,
        seed=None if found.seeded else request.seed,
        break_even_steps=found.break_even if found.kept else None,
        trials=tuple(trials.done),
        wall_s=wall_s,
        complete=not (why or found.not_done),
        why_incomplete=why or found.not_done,
        environment=plan.environment,
        recipe=str(plan.folder / "recipe.toml") if found.kept else None,
    )


__all__: Sequence[str] = ("TuneRequest", "begin", "check", "read_request", "tune")
