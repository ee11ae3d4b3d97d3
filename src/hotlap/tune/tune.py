"""A whole tune: from a command to `tune.json` and `recipe.toml`, resumable and interruptible."""

import math
import time
from collections.abc import Sequence
from pathlib import Path

from hotlap.experiment.side import Bench
from hotlap.experiment.watch import Listener
from hotlap.launch.command import find_program
from hotlap.launch.environment import environment
from hotlap.launch.packages import versions_of
from hotlap.launch.supervise import adopt_orphans
from hotlap.levers import all_levers
from hotlap.records.errors import HotlapError, Interrupted, RecordError, UsageError
from hotlap.records.files import RECIPE, new_folder, read_record, write_recipe, write_record
from hotlap.records.tune import Tune
from hotlap.runs.folder import TuneFolder
from hotlap.runs.plan import RunPlan

from .frontier import frontier
from .objective import KINDS, TuneRequest
from .recipe import recipe_of
from .search import Search

MOST_SLOWDOWN = 10.0
FAILED = "hotlap itself failed"


def check(request: TuneRequest) -> None:
    """Raises UsageError for unknown levers or other options that make no sense, CommandError for a command that can't
    be started."""
    known = all_levers()
    for name in (*request.only, *request.without):
        if name not in known:
            raise UsageError(f"no lever {name!r}; the levers are {', '.join(known)}")
    if set(request.allow) - {"semantic"}:
        raise UsageError(f"--allow takes only 'semantic', not {', '.join(request.allow)}")
    if request.objective not in KINDS:
        raise UsageError(f"--objective takes {', '.join(KINDS)}, not {request.objective!r}")
    if request.objective == "cost" and request.price is None:
        raise UsageError("--objective cost needs --price, the dollars that an hour of this machine costs")
    if request.price is not None and not 0 < request.price < math.inf:
        raise UsageError(f"--price {request.price} is not a price; give dollars an hour, as 2.49")
    if not 0 <= request.slowdown <= MOST_SLOWDOWN:
        raise UsageError(f"--slowdown {request.slowdown} is not between 0 and {MOST_SLOWDOWN:g}; 0.1 means 10%")
    if request.steps < 12:
        raise UsageError(f"--steps {request.steps} is too few to compare trials by; give at least 12")
    if any("\ud800" <= char <= "\udfff" for word in (request.cwd, *request.command) for char in word):
        raise UsageError("the command or its folder is not valid UTF-8, which --resume needs")
    find_program(request.command, Path(request.cwd))


def begin(folder: Path, request: TuneRequest) -> None:
    """Make the folder of a new tune. Raises RecordError where it exists or can't be written."""
    new_folder(folder)
    new_folder(TuneFolder(folder).trials)
    write_record(TuneFolder(folder).request, request)


def read_request(folder: Path) -> TuneRequest:
    """The request of an earlier tune. Raises RecordError."""
    file = TuneFolder(folder).request
    if not file.is_file():
        raise RecordError(f"{folder} holds no {file.name}; give --resume the folder of a tune")
    return read_record(file, TuneRequest)


def tune(folder: Path, request: TuneRequest, listener: Listener, resume: bool = False) -> Tune:
    """Tune the command; the folder was made by `begin`.

    Whatever is proved is written at once (`tune.json`, `recipe.toml`), so it stands however the tune ends. On Ctrl-C,
    and where an error ends a tune that has proved something, what is known is returned with `complete` false. Raises
    CommandFailed, NothingMeasured, RecordError where nothing is proved or the bare command fails; Interrupted where
    nothing is known yet.
    """
    adopt_orphans()
    begun = time.monotonic()
    cwd = Path(request.cwd)
    made_in = environment(cwd)
    plan = RunPlan(
        request.command, folder, made_in, steps=request.steps, seconds=request.seconds, seed=request.seed, cwd=cwd
    )
    earlier = TuneFolder(folder).tune if resume else None
    earlier_s = earlier.wall_s if earlier else 0.0
    with Bench(plan, listener) as bench:
        search = Search(bench, request, earlier=earlier)

        def write(why: str = "not ended yet") -> Tune:
            result = _record(request, bench, search, why, earlier_s + time.monotonic() - begun)
            if result.recipe:
                write_recipe(folder / RECIPE, recipe_of(result))
            else:
                (folder / RECIPE).unlink(missing_ok=True)
            TuneFolder(folder).write(result)
            return result

        search.state.on_proof = write
        why = FAILED
        try:
            search.run()
            why = ""
        except KeyboardInterrupt:
            why = "interrupted"
            if search.found.baseline is None:
                raise Interrupted(
                    f"{why} before the baseline was measured; `hotlap tune --resume {folder}` goes on"
                ) from None
            why += search.not_tried("Ctrl-C came")
        except HotlapError as error:
            why = f"an error ended the search: {error}"
            if search.found.proved is None or search.found.noise is None:  # it is of the bare command
                raise
            why += search.not_tried("an error came")
        finally:
            if why == FAILED and search.found.proved is not None:
                listener.result(f"{FAILED}; what was proved until then stands: {folder / RECIPE}")
        return write(why)


def _record(request: TuneRequest, bench: Bench, search: Search, why: str, wall_s: float) -> Tune:
    found, state = search.found, search.state
    if found.baseline is None:
        raise HotlapError("a tune without a baseline has no result")
    before, after = found.memory
    proof = found.proved or (found.proofs[-1] if found.proofs else None)
    why = "; ".join(filter(None, (why, *found.not_done)))
    return Tune(
        command=request.command,
        speedup=(proof.ratio or None) if proof else None,
        interval=proof.interval if proof else None,
        starts=proof.starts if proof else 0,
        turns=proof.turns if proof else 0,
        how=proof.how if proof else "turns",
        before_ms=proof.before_ms if proof else None,
        after_ms=proof.after_ms if proof else None,
        gain=found.proved is not None,
        kept=tuple(state.kept()),
        dropped=tuple(found.dropped.values()),
        parity=proof.parity if proof else None,
        baseline=found.baseline,
        tuned=found.tuned if found.proved else None,
        proofs=tuple(found.proofs),
        unproved=found.unproved,
        noise=found.noise,
        seed=None if found.seeded else request.seed,
        break_even_steps=found.break_even if found.proved else None,
        trials=tuple(bench.done),
        wall_s=wall_s,
        complete=not why,
        why_incomplete=why,
        environment=bench.plan.environment,
        versions=versions_of(rank for trial in bench.done for rank in bench.run(trial).ranks),
        recipe=str(bench.plan.folder / RECIPE) if found.proved or found.fitted else None,
        objective=request.objective,
        memory_before_bytes=before,
        memory_after_bytes=after,
        price=request.price,
        fitted=tuple(found.fitted),
        reference=found.reference,
        no_reference=found.no_reference,
        reused=tuple(found.reused),
        frontier=frontier(bench.done, state.levers) if request.objective == "memory" else (),
        **found.costs,
    )


__all__: Sequence[str] = ("TuneRequest", "begin", "check", "read_request", "tune")
