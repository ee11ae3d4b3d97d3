"""Lines on disk, written as steps are done, whole lines at a time: a killed job loses at most those not yet written."""

import json
import math
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hotlap.records.phases import PHASES

from .device import DeviceMarks, LateLosses
from .timeline import Segment, Stretch


def _number(value: float | None) -> str:
    """JSON number, null where unknown or not finite."""
    return "null" if value is None or not math.isfinite(value) else repr(value)


# One formatting operation a line: this runs in every step of the user's loop.
PHASES_JSON = "{" + ",".join(f'"{name}":%.4f' for name in PHASES) + "}"
LINE = (
    '{"step":%d,"time":%.6f,"wall_ms":%.6f,"gpu_ms":%s,"phases":'
    + PHASES_JSON
    + ',"loss":%s,"samples":%s%s,"kind":"%s"}\n'
)

UNSAMPLED = (
    '{"step":%d,"time":%.6f,"wall_ms":%.6f,"gpu_ms":%s,"phases":null,"loss":null,"samples":null%s,"kind":"%s"}\n'
)
"""Of a step that was not looked at."""
AT_ONCE_MS, AT_ONCE_SHARE = 0.05, 0.15
"""How long after the host the device may reach the end of a stretch that it is still said to have waited in: what a
last kernel and its launch take, and a share of the stretch."""
MOST_BYTES = 32 << 20
"""Of a file of steps, about 200,000. The first are kept, and the last of such files, full or not, with the one before:
a run of weeks leaves three."""
FIRST, BEFORE, LAST = "steps.jsonl", "steps-before.jsonl", "steps-last.jsonl"


def restarts() -> int:
    """How often torchrun has started the ranks anew; 0 without it."""
    return environment_int("TORCHELASTIC_RESTART_COUNT", 0)


def environment_int(name: str, default: int) -> int:
    """A variable of the environment; the default where it is no number."""
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default


def start_folder(run: str) -> str:
    """Where in a run's folder this start of the ranks writes, made if need be: later ones beside the first, since ranks
    that are started anew get other numbers."""
    if not (start := restarts()):
        return run
    path = os.path.join(run, f"start-{start}")
    os.makedirs(path, exist_ok=True)
    return path


class Folder:
    """A rank's folder in the run folder, made at the first step."""

    def __init__(self, run: str, rank: int) -> None:
        self.rank, within = rank, start_folder(run)
        while True:
            self.path = os.path.join(within, f"rank-{self.rank}")
            try:
                os.mkdir(self.path)
                break
            except FileExistsError:
                self.rank += 1
        self._files: dict[str, int] = {}

    def append(self, name: str, line: str) -> None:
        """Append lines, with one write where the disk takes them whole. Raises OSError."""
        handle = self._files.get(name)
        if handle is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
            handle = self._files[name] = os.open(f"{self.path}/{name}", flags, 0o644)
        raw = line.encode("utf-8", "replace")
        while raw:
            raw = raw[os.write(handle, raw) :]

    def move(self, name: str, to: str) -> None:
        """Rename a file that was appended to, over another. Raises OSError."""
        handle = self._files.pop(name, None)
        if handle is not None:
            os.close(handle)
        os.replace(f"{self.path}/{name}", f"{self.path}/{to}")

    def replace(self, name: str, document: Any) -> None:
        """Write a JSON document so that readers see it whole."""
        target = f"{self.path}/{name}"
        with open(f"{target}.part", "w", encoding="utf-8", errors="replace") as file:
            json.dump(document, file, ensure_ascii=False)  # or bytes that are no UTF-8 become what no reader takes
        os.replace(f"{target}.part", target)


class Recorder:
    """Turns segments into lines of steps.jsonl, late enough that the device is never waited for."""

    def __init__(self, folder: Callable[[], Folder], marks: DeviceMarks, losses: LateLosses) -> None:
        self.folder = folder
        self.marks = marks
        self.losses = losses
        self.waiting: deque[Segment | Stretch] = deque()
        """Steps whose host side is known and whose device side may still run."""
        self.index = self.written = 0
        self.trained: int | None = None
        """What the next line says, where it changed."""
        self.previous_event: Any = None
        self.host_anchor: int | None = None
        self.device_ms = 0.0
        self.least_lag = 0.0
        self.may_ask: Callable[[], bool] = lambda: True
        """Whether the device may be asked now."""
        self.file, self.bytes, self.most_bytes = FIRST, 0, MOST_BYTES

    def begin_anew(self) -> None:
        """In a child process: all that was taken is the parent's."""
        self.waiting.clear()
        self.index = self.written = self.bytes = 0
        self.file = FIRST

    def add(self, segment: Segment) -> None:
        """Take a finished step."""
        self.index += 1
        self.waiting.append(segment)

    def add_unsampled(self, stretch: Stretch) -> None:
        """Take finished steps that were not looked at."""
        self.index += len(stretch.ends)
        self.waiting.append(stretch)

    def drain(self, wait: bool = False) -> None:
        """Write the steps the device has finished; with `wait` (at the end of the process) all of them."""
        if not (wait or self.may_ask()):
            return
        lines: list[str] = []
        since = time.time() - time.perf_counter_ns() / 1e9
        while self.waiting:
            step = self.waiting[0]
            if isinstance(step, Stretch):
                lines += self._unsampled_lines(step, self._done(step, wait), since)
                if step.told < len(step.ends):
                    break
                self.waiting.popleft()
                continue
            if step.marks and not self.marks.done(step.marks[-1][1]):
                if not wait:
                    break
                step.marks[-1][1].synchronize()
            self.waiting.popleft()
            lines.append(self._line(step, since + step.end_ns / 1e9))
        if lines:
            self._write("".join(lines))

    def _write(self, lines: str) -> None:
        """Append them to the file in hand; where it is full, the next takes its place."""
        self.folder().append(self.file, lines)
        self.bytes += len(lines)
        if self.bytes >= self.most_bytes:
            if self.file == LAST:
                self.folder().move(LAST, BEFORE)
            self.file, self.bytes = LAST, 0

    def _device(self, step: Segment) -> tuple[float | None, list[float] | None, list[float]]:
        """Device ms of the step, and by phase where every cut was marked. Both are of the stream in which it ended:
        what a phase issued in others, such as batches that are copied ahead, runs beside. Last, those ms by phase in
        which the device was done with what it had as soon as the host had issued it: the host's pace, not its own."""
        marks, begun = step.marks, self.previous_event
        self.previous_event = marks[-1][1] if marks else None
        if begun is None or not marks:
            return None, None, []
        total = self.marks.elapsed(begun, marks[-1][1])
        phases, paced = [0.0] * 6, [0.0] * 6
        if step.full and total is not None:
            anchor = self._anchor(step.begun_ns)
            passed, previous, reached = [], begun, 0.0
            for phase, event, at in marks:
                took = self.marks.elapsed(previous, event)
                if took is not None:
                    previous, reached = event, reached + took
                    lag = self.device_ms + reached - (at - anchor) / 1e6
                    self.least_lag = min(self.least_lag, lag)
                    passed.append((min(phase, 5), took, lag))
            for phase, took, lag in passed:
                phases[phase] += took
                if lag - self.least_lag < AT_ONCE_MS + AT_ONCE_SHARE * took:
                    paced[phase] += took
        self.marks.give_back(begun)
        for mark in marks[:-1]:
            self.marks.give_back(mark[1])
        return total, phases if step.full and total is not None else None, paced

    def _anchor(self, begun_ns: int) -> int:
        """When, on the host's clock, device time is counted from."""
        if self.host_anchor is None:
            self.host_anchor, self.device_ms, self.least_lag = begun_ns, 0.0, 0.0
        return self.host_anchor

    def _backlog(self, begun_ns: int, end_ns: int, gpu_ms: float | None) -> float | None:
        """Device ms still queued when the host reached the step's end: how far device time runs behind host time,
        above the least lag ever seen (at which the device was idle and began at once)."""
        if gpu_ms is None:
            self.host_anchor = None
            return None
        anchor = self._anchor(begun_ns)
        self.device_ms += gpu_ms
        lag = self.device_ms - (end_ns - anchor) / 1e6
        self.least_lag = min(self.least_lag, lag)
        return lag - self.least_lag

    def _line(self, step: Segment, ended: float) -> str:
        """ended: seconds since the epoch."""
        gpu, rest = "null", ""
        if step.marks or self.previous_event is not None:
            gpu_ms, gpu_phases, paced = self._device(step)
            backlog = self._backlog(step.begun_ns, step.end_ns, gpu_ms)
            gpu = _number(gpu_ms)
            if gpu_phases is not None:
                rest += f',"gpu_phases":{PHASES_JSON % tuple(gpu_phases)}'
                rest += f',"gpu_paced":{PHASES_JSON % tuple(paced)}'
            if backlog is not None:
                rest += f',"backlog_ms":{backlog:.4f}'
        if step.evaluation or step.skipped or step.probe or step.starved or step.compiles:
            rest += _flags(step.evaluation, step.skipped, step.probe, step.compiles, step.starved)
        self.written += 1
        if step.unsampled:
            return UNSAMPLED % (self.written - 1, ended, (step.end_ns - step.begun_ns) / 1e6, gpu, rest, step.kind)
        losses = step.losses
        if len(losses) == 1:
            loss = self.losses.value(losses[0])
        else:
            loss, values = self._several(losses)
            if values:
                rest += f',"losses":[{",".join(_number(value) for value in values)}]'
        if loss is not None and not math.isfinite(loss):
            rest += ',"nonfinite":true'
        if self.trained is not None:
            rest += f',"trained":{self.trained}'
            self.trained = None
        if step.tokens:
            rest += f',"tokens":{step.tokens}'
        data, h2d, forward, backward, optimizer, other, _ = step.ns
        return LINE % (
            self.written - 1, ended, (step.end_ns - step.begun_ns) / 1e6, gpu,
            data / 1e6, h2d / 1e6, forward / 1e6, backward / 1e6, optimizer / 1e6, other / 1e6,
            _number(loss), step.samples or "null", rest, step.kind,
        )  # fmt: skip

    # steps that were not looked at

    def _done(self, stretch: Stretch, wait: bool) -> int:
        """How many of its steps the device has passed; with `wait` it is waited for."""
        ends, last = stretch.ends, stretch.ends[-1][1]
        if not stretch.marked:
            return len(ends)
        if stretch.one_stream and last is not None and self.marks.done(last):
            return len(ends)
        for at in range(stretch.told, len(ends)):
            event = ends[at][1]
            if not self.marks.done(event):
                if not wait:
                    return at - at % stretch.together
                event.synchronize()
        return len(ends)

    def _unsampled_lines(self, stretch: Stretch, upto: int, since: float) -> list[str]:
        """Lines of a stretch's steps that are not written yet. since: the epoch less the clock, seconds."""
        told, kind, step = stretch.told, stretch.kind, self.written
        ends, walls = stretch.ends[told:upto], stretch.walls_ns[told:upto]
        if stretch.marked or self.previous_event is not None:
            device = self._unsampled_device(ends, walls, stretch.together)
        else:
            device = [("null", "")] * len(ends)
        if stretch.unusual:
            device = [(gpu, rest + _flags(*stretch.facts(told + at))) for at, (gpu, rest) in enumerate(device)]
        stretch.told = upto
        self.written += len(ends)
        return [
            UNSAMPLED % (at, since + ended / 1e9, wall / 1e6, gpu, rest, kind)
            for at, (ended, _), wall, (gpu, rest) in zip(range(step, self.written), ends, walls, device, strict=True)
        ]

    def _unsampled_device(self, ends: list[tuple[int, Any]], walls: list[int], together: int) -> list[tuple[str, str]]:
        """What the lines of steps in a row say of the device: of each, and how far the device runs behind. together:
        steps that have one mark, and so each the same share of the device's time."""
        found = []
        before, elapsed, free = self.previous_event, self.marks.elapsed, self.marks.free
        for at in range(0, len(ends), together):
            ended, event = ends[at : at + together][-1]
            begun = ends[at][0] - walls[at]
            gpu_ms = elapsed(before, event)
            backlog = self._backlog(begun, ended, gpu_ms)
            if before is not None:
                free.append(before)
            before = event
            steps = min(together, len(ends) - at)
            share = "null" if gpu_ms is None else f"{gpu_ms / steps:.6f}"
            found += [(share, "")] * (steps - 1)
            found.append((share, "" if backlog is None else f',"backlog_ms":{backlog:.4f}'))
        self.previous_event = before
        return found

    def _several(self, handles: list[Any]) -> tuple[float | None, list[float | None]]:
        """The loss of a step with several backwards, or none: their sum, unless one is not known; and each."""
        values = [self.losses.value(handle) for handle in handles]
        known = [value for value in values if value is not None]
        return (sum(known) if known and len(known) == len(values) else None), values


def _flags(evaluation: bool, skipped: bool, probe: bool, compiles: int, starved: bool = False) -> str:
    """The rarer facts of a step."""
    flags = (("evaluation", evaluation), ("skipped", skipped), ("probe", probe), ("starved", starved))
    rest = "".join(f',"{name}":true' for name, on in flags if on)
    return f'{rest},"compiles":{compiles}' if compiles else rest
