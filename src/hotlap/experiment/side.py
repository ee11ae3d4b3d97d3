"""A side: a command that runs with some levers, and from its warm-up on makes steps only when it is its turn.

A `Bench` starts sides, several at once, lets them warm up one after another, gives turns, and ends them. Where they
compile in their first steps they make these at once too. A side that is ready has been measured as any short run is
(`outcome.py`), and its folder can be read; while it waits it stands still, its loader workers too.
"""

import math
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import msgspec

from hotlap.diagnose.diagnose import Rank, diagnose, read_ranks
from hotlap.launch.gate import Gate
from hotlap.launch.run import BackgroundRun
from hotlap.launch.supervise import LOOK_S, Ended
from hotlap.levers import variables_of
from hotlap.levers.compiler import _compile_cache
from hotlap.records.diagnosis import Diagnosis
from hotlap.records.errors import RecordError
from hotlap.records.files import new_folder
from hotlap.records.run import Facts, LeftOut, Lever, Step
from hotlap.records.tune import Trial, Turn
from hotlap.runs.folder import RunFolder, TuneFolder
from hotlap.runs.plan import RunPlan

from .evidence import Evidence, read_evidence
from .outcome import Reading, crash, names, read_outcome, refusal_in
from .pauses import Pauses
from .watch import SLOW_STEPS, Listener, Refusal, TooSlow, Watch, left_out, spared

STEPS: Final = 2000
LATE: Final = 0.03
"""Share of the steps that a loop waits for late batches, from which on it is said to wait for its workers."""
WAVE_S: Final = 3.0
"""Longest turn for the sake of a whole wave."""
SECONDS: Final = 1.0
LEAST_STEPS: Final = 8
"""Steady steps of a side before it is ready: at least so many, then for so many seconds, at most STEPS."""
SEED: Final = 81649
PROBE_STEPS: Final = 4
CROWDED: Final = 0.25
"""Of the seconds until sides stand: who stood still for more of them, for others' threads, was not at it with them."""
TRIALS, TURNS = JOURNALS = "trials.jsonl", "turns.jsonl"
TOO_LONG: Final = "its steps were too slow"
BY_ITSELF: Final = "the command ended by itself"
END_S: Final = 6.0
"""A side that is told to end has so long before it is ended hard; all that is known of it is on disk."""
TURN_S: Final = 0.5
"""Steps of a turn that count: as many as take this long. One more is made first."""
SHORTEST: Final = 0.2
"""Of that, that a turn is at least, where more of them are to come before a pause."""


@dataclass(frozen=True)
class Special:
    """What sets a side apart beside its levers. nudge, redraw: see `records.session.Session`. trying: the levers that
    it is about, of which some may leave themselves out. slow_ms: it is ended when SLOW_STEPS take longer than this.
    seconds, least_steps: of steady steps before it is ready, where not as the plan says. together: its first steps, in
    which it compiles, are made while others make theirs."""

    nudge: float = 0.0
    redraw: int | None = None
    seconds: float | None = None
    least_steps: int = LEAST_STEPS
    trying: tuple[str, ...] = ()
    slow_ms: float | None = None
    together: bool = False


@dataclass(eq=False)
class Side:
    """One. trial: what is known of it, None while it starts. alive: it can have a turn."""

    number: int
    purpose: str
    requested: tuple[Lever, ...]
    folder: Path
    special: Special
    timeout_s: float
    run: BackgroundRun
    gate: Gate
    watch: Watch
    begun: float
    trial: Trial | None = None
    alive: bool = True
    warming: bool = False
    """It may make its first steps."""
    until_s: float = 0.0
    """Seconds until it stood where its loop begins, or after its first steps where these are made together."""
    waited: float = 0.0
    """Seconds that it stood there."""
    wants: int = 0
    """Threads that want to run, as it starts."""
    stood: float = 0.0
    """Seconds that it stood still meanwhile, for others' threads."""
    read: dict[int, int] = field(default_factory=dict)
    """Bytes of each rank's steps that were read."""
    in_now: dict[str, dict[str, object]] = field(default_factory=dict)
    """Levers that are in now, with settings."""
    step_ms: float = 1.0
    """Of its last turn."""
    wave: int = 1
    """See `wave_of`."""
    evaluates: bool = False
    """Most of its steps hold an evaluation, which is part of the loop then, as of a graph's other nodes."""

    @property
    def least_steps(self) -> int:
        """Of a turn: a whole wave, where that is not long."""
        return min(self.wave, math.ceil(WAVE_S * 1000 / max(self.step_ms, 1e-3)))

    @property
    def ready(self) -> bool:
        """Whether it waits for a turn."""
        return self.alive and self.trial is not None and self.gate.arrived

    @property
    def took_s(self) -> float:
        """Seconds since it began, but for those that it stood still."""
        return time.monotonic() - self.begun - self.waited - self.stood

    @property
    def measured(self) -> Trial:
        """Its record."""
        assert self.trial is not None
        return self.trial

    @property
    def rest_s(self) -> float:
        """Seconds that it took from where it stood, by itself."""
        return self.measured.wall_s - self.until_s


class Bench:
    """All sides of an experiment. Leaving the block ends them all."""

    def __init__(self, plan: RunPlan, listener: Listener) -> None:
        self.plan, self.listener = plan, listener
        self.done: list[Trial] = []
        self._diagnoses: dict[int, Diagnosis] = {}
        self.sides: list[Side] = []
        self.shuffle = random.Random(plan.seed)
        self.cores = plan.environment.usable_cores
        self.turns: list[tuple[dict[str, dict[str, object]], Turn]] = []
        """All that were taken, in order, each with the levers that were in."""
        self.crowded = self.crowded_steps = False
        """Whether sides that started at once had more threads than there are cores before their loops began; and
        whether the last ones that were to make first steps together hardly did, since these had."""
        self.pauses = Pauses()
        self._looked = 0.0
        self._sockets = Path(tempfile.mkdtemp(prefix="hotlap-"))
        for name in JOURNALS:  # an earlier session may have been killed in the middle of a line
            if (plan.folder / name).exists():
                self._write(name)

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *error: object) -> None:
        for side in [side for side in self.sides if side.alive]:
            self.end(side, patient=False)
        shutil.rmtree(self._sockets, ignore_errors=True)

    # sides

    def start(
        self,
        purpose: str,
        levers: Sequence[Lever] = (),
        special: Special | None = None,
        timeout_s: float = 600.0,
        command: tuple[str, ...] | None = None,
        cwd: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> Side:
        """Start a side; it is not waited for. command, cwd: by default the plan's. variables: more of them."""
        special, plan = special or Special(), self.plan
        trials = TuneFolder(plan.folder).trials
        number = len(list(trials.glob("*")))
        folder = new_folder(trials / f"{number:03d}")
        gate = Gate(self._sockets / f"{number:03d}")
        plan = replace(
            plan,
            command=command or plan.command,
            folder=folder,
            seconds=special.seconds or plan.seconds,
            least_steps=min(plan.steps or STEPS, special.least_steps),
            levers=tuple(levers),
            variables={
                "PYTHONHASHSEED": "0",
                "PET_MASTER_PORT": str(_free_port()),  # of torchrun: two of them at once need two
                **_compile_cache.variables(),  # what is compiled in a live process is found by the next one that starts
                **variables_of(levers),
                **(variables or {}),
            },
            probe_steps=PROBE_STEPS,
            nudge=special.nudge,
            redraw=special.redraw,
            turns=str(gate.path),
            first_steps=PROBE_STEPS if special.together else 0,  # on which no number rests
            cwd=cwd or plan.cwd,
        )
        self.listener.trial(purpose, names(levers))
        spare = spared(levers, special.trying)
        watch = Watch(folder, self.listener, spare, special.slow_ms)
        side = Side(
            number=number, purpose=purpose, requested=tuple(levers), folder=folder, special=special,
            timeout_s=timeout_s, run=BackgroundRun(plan), gate=gate, watch=watch, begun=time.monotonic(),
            in_now={lever.name: dict(lever.settings) for lever in levers},
        )  # fmt: skip
        self.sides.append(side)
        return side

    def ready(self, *sides: Side) -> None:
        """Wait until each of them is ready or has failed: its trial says which."""
        while waiting := [side for side in sides if side.trial is None and not side.gate.at_start]:
            self._share_cores(waiting)
            for side in waiting:
                self._look(side, 0.05 / len(waiting))
                if side.gate.at_start:
                    side.until_s = side.took_s
                    side.run.processes.go_on()  # it may have been stopped since it said so
        if len(sides) > 1 and any(side.special.together for side in sides):
            self.crowded_steps = max(side.stood for side in sides) > CROWDED * max(side.until_s for side in sides)
        for side in sides:
            if side.trial is None:
                side.warming, side.waited = True, side.took_s - side.until_s
            while side.trial is None:
                self._look(side, 0.05)

    def _share_cores(self, starting: Sequence[Side]) -> None:
        """Of sides that start, the later ones stand still while all have more threads that want to run than there are
        cores: where each computes on all cores, threads wait at barriers for others that don't run. (128 images made by
        small operations of 2 threads on 2 cores: 10 s, two at once 61 s each; of one thread 0.9 s.)"""
        now = time.monotonic()
        if now - self._looked < LOOK_S:
            return
        passed, self._looked = now - self._looked, now
        free = self.cores
        for side in starting:
            processes = side.run.processes
            if processes.stands_still:
                side.stood += passed
            else:
                side.wants = min(processes.busy_threads(), self.cores)
            fits = side.wants <= free
            free -= side.wants if fits else 0
            if fits and processes.stands_still:
                processes.go_on()
            elif not fits and not processes.stands_still:
                self.crowded |= not any(one.special.together for one in starting)
                processes.stand_still()

    def _look(self, side: Side, seconds: float) -> None:
        """Whether a side that starts is ready by now, or has failed."""
        side.gate.wait(seconds)
        if side.warming:
            side.gate.begin()
        try:
            if side.gate.arrived:
                side.watch.count()
                self._became(side, read_outcome(side.folder, None, side.timeout_s, side.watch.spare))
            elif (over := side.run.over()) or side.took_s > side.timeout_s:
                ended = self._stop(side, timed_out=not over)
                self._became(side, read_outcome(side.folder, ended, side.timeout_s, side.watch.spare))
            else:
                side.watch()
        except Refusal:
            self._stop(side)
            self._became(side, refusal_in(side.folder) or ("refused", "", {}))
        except TooSlow as slow:
            self._stop(side)
            self._became(side, ("too slow", f"ended after {SLOW_STEPS} slow steps", {"step_ms": slow.step_ms}))

    def _became(self, side: Side, reading: Reading) -> None:
        """What came of its start is known; it is written down."""
        outcome, why, known = reading
        left = left_out(side.folder, side.watch.spare)
        if outcome != "measured" and side.alive:
            self._stop(side)
        side.trial = Trial(
            id=side.number,
            purpose=side.purpose,
            levers=tuple(lever for lever in side.requested if lever.name not in left),
            left_out=tuple(
                LeftOut(lever=lever, why=left[lever.name].why, was_in=left[lever.name].was_in)
                for lever in side.requested
                if lever.name in left
            ),
            folder=str(side.folder.relative_to(self.plan.folder)),
            outcome=outcome,
            why=why,
            wall_s=side.took_s,
            **known,
        )
        self.done.append(side.trial)
        self._write(TRIALS, side.trial)
        if outcome == "measured" and side.trial.mean_ms is not None:
            self._diagnoses[side.number] = diagnose(side.folder)  # before it takes turns, which are no steady stretch
            side.step_ms = side.trial.step_ms or side.step_ms
            side.wave = wave_of(RunFolder(side.folder).facts, side.step_ms)
            side.evaluates = any(step.evaluation for step in read_ranks(side.folder)[0].steady.steps)
        self.new_steps(side)

    def _stop(self, side: Side, timed_out: bool = False) -> Ended:
        """End its processes."""
        side.alive = False
        side.gate.close()
        _, ended = side.run.end(timed_out)
        if timed_out or ended.code is None:
            _compile_cache.mend()
        return ended

    def end(self, side: Side, patient: bool = True) -> None:
        """End a side; patient: with time to end by itself."""
        if not side.alive:
            return
        if patient and side.ready:
            side.gate.tell({"end": True})
            limit = time.monotonic() + END_S
            while not side.run.over() and time.monotonic() < limit:
                side.gate.wait(0.05)
        self._stop(side)

    def once(
        self, purpose: str, levers: Sequence[Lever], special: Special | None = None, timeout_s: float = 600.0
    ) -> Trial:
        """A run that is ended when it is ready."""
        side = self.start(purpose, levers, special, timeout_s)
        self.ready(side)
        self.end(side)
        return side.measured

    def end_all(self, keep: Sequence[Side] = ()) -> None:
        """End all but these."""
        for side in [side for side in self.sides if side.alive and side not in keep]:
            self.end(side)

    # turns

    def turn(
        self, side: Side, steps: int | None = None, levers: Mapping[str, Mapping[str, object]] | None = None,
        timeout_s: float | None = None,
    ) -> Turn | None:  # fmt: skip
        """Let a side make its steps; None where it ended meanwhile. The first of them is not counted. levers: those
        that are to be in from here on. timeout_s: it is ended where they take longer."""
        count = steps or self.turn_steps(side)
        order: dict[str, object] = {"run": count + 1}
        if levers is not None:
            order["levers"] = [[name, dict(settings)] for name, settings in levers.items()]
            side.in_now = {name: dict(settings) for name, settings in levers.items()}
        first = side.gate.step
        begun = time.monotonic()
        side.gate.tell(order)
        while not side.gate.arrived:
            side.gate.wait(0.05)
            side.gate.begin()  # a process that it starts meanwhile, to evaluate say
            late = timeout_s is not None and time.monotonic() - begun > timeout_s
            if late or (not side.gate.arrived and side.run.over()):
                self._lost(side, late)
                return None
        made, now = self.new_steps(side), tuple(sorted(side.in_now))
        turn = turn_of(side.number, first, side.gate.step, made, now, side.evaluates)
        turn = msgspec.structs.replace(turn, wall_ms=1000 * (time.monotonic() - begun))
        side.step_ms = turn.step_ms or side.step_ms
        self.turns.append((dict(side.in_now), turn))
        self._write(TURNS, turn)
        return turn

    def _lost(self, side: Side, late: bool) -> None:
        """A side ended in its turn: by itself as scripts come to their end, by a crash, or since it took too long."""
        ended = self._stop(side, late)
        failed = crash(side.folder, ended)
        self.amend(side.measured, ended=TOO_LONG if late else failed[1] if failed else BY_ITSELF)

    def turn_steps(self, side: Side, turns: int = 1) -> int:
        """Steps of its next turn: see TURN_S. turns: as in `placed`."""
        wanted = max(side.least_steps, math.ceil(TURN_S * 1000 / max(side.step_ms, 1e-3)))
        return self.placed(side, max(1, min(wanted, STEPS)), turns)

    def placed(self, side: Side, wanted: int, turns: int) -> int:
        """About so many steps; fewer where that lets a side have so many turns before its next pause (`Pauses`)."""
        room = self.pauses.room(side.gate.step)
        if room is not None:
            shorter = int((room / turns - 2) / 1.25)  # what is drawn, and the one that is not counted
            fewest = max(side.least_steps, math.ceil(SHORTEST * wanted))
            wanted = shorter if fewest <= shorter < wanted else wanted
        return drawn(wanted, self.shuffle)

    def placeable(self, side: Side, turns: int, pause: bool = False) -> bool:
        """Whether a side can have so many turns, however short, before its next pause; pause: if it just had one."""
        room = self.pauses.room(side.gate.step)
        fewest = max(side.least_steps, SHORTEST * TURN_S * 1000 / max(side.step_ms, 1e-3))
        needed = turns * (1.25 * (fewest + 1) + 2)
        return room is None or (self.pauses.period if pause else room) >= needed

    def pauses_s(self, sides: Sequence[Side], turns: int) -> float:
        """Seconds of pauses that these have in so many turns, where they could be placed between two."""
        placed = all(self.placeable(side, turns, pause=True) for side in sides)
        return sum(self.pauses.longest_s for side in sides if placed and not self.placeable(side, turns))

    def new_steps(self, side: Side) -> list[list[Step]]:
        """Steps of each rank that were written since the last call."""
        found = []
        for rank in RunFolder(side.folder).observed:
            lines, side.read[rank.number] = rank.new_steps(side.read.get(rank.number, 0))
            try:
                found.append([msgspec.json.decode(line, type=Step) for line in lines])
            except msgspec.MsgspecError as error:
                raise RecordError(f"{rank.file(Step)}: {error}") from error
        for steps in found[:1]:
            self.pauses.learn(steps, side.step_ms)
        return found

    # what is known

    def run(self, trial: Trial) -> RunFolder:
        """What a side left."""
        return TuneFolder(self.plan.folder).trial(trial)

    def evidence(self, trial: Trial) -> Evidence:
        """What a side computed so far."""
        return read_evidence(self.run(trial).path)

    def diagnosis(self, trial: Trial) -> Diagnosis:
        """The verdict of a side's run up to where it was ready."""
        return self._diagnoses[trial.id]

    def rank(self, trial: Trial) -> Rank:
        """The first process of a side."""
        return read_ranks(self.run(trial).path)[0]

    def amend(self, trial: Trial, **changes: object) -> Trial:
        """Replace a trial by one with more known about it."""
        amended = msgspec.structs.replace(trial, **changes)
        self.done[next(at for at, one in enumerate(self.done) if one.id == trial.id)] = amended
        for side in self.sides:
            if side.number == trial.id:
                side.trial = amended
        return amended

    def _write(self, name: str, record: msgspec.Struct | None = None) -> None:
        with (self.plan.folder / name).open("ab") as journal:
            journal.write((msgspec.json.encode(record) if record else b"") + b"\n")


def turn_of(
    side: int,
    first: int,
    last: int,
    ranks: Sequence[Sequence[Step]],
    levers: tuple[str, ...] = (),
    evaluates: bool = False,
) -> Turn:
    """What a turn's steps say: mean ms of those that count, of the slowest rank.

    Not those in which something was compiled or probed, nor, unless most are (evaluates), evaluated; nor the first. By
    the device's clock where every step knows it, between the ends of two steps: the host may run ahead of it.
    """
    times, rows = [], []
    for steps in ranks:
        counted = [one for one in steps if not (one.compiles or one.probe or (one.evaluation and not evaluates))]
        if not counted:
            continue
        known = [step.gpu_ms for step in counted if step.gpu_ms is not None]
        clock = known if len(known) == len(counted) else [step.wall_ms for step in counted]
        times.append(sum(clock) / len(clock))
        rows.append(sum(step.samples or 0 for step in counted) / len(counted))
    return Turn(
        side=side, first=first, last=last, levers=levers, step_ms=max(times, default=None), rows=sum(rows) or None
    )


def wave_of(facts: Facts | None, step_ms: float) -> int:
    """Steps in which a loop that waits for loader workers waits once, 1 where it hardly waits: they begin together, so
    that all bring a batch at about the same time (DINO, 10 workers: 137 ms a step in one turn, 359 in the next)."""
    loaders = [one for one in facts.loaders if one.training] if facts else []
    return max((one.workers for one in loaders if one.late_ms > LATE * one.asked * step_ms), default=1)


def drawn(steps: int, shuffle: random.Random) -> int:
    """So many steps, or up to a quarter and one more. The batches of several loader workers come in waves: turns of
    always as many steps may each leave out the same step of a wave, their first, and that may be the one that waits."""
    return steps + shuffle.randrange(steps // 4 + 2)


def _free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
