"""What earlier tunes of the same command, code, environment and hardware learned, so that tuning again is fast.

Remembered are levers that crashed, hung, ran out of memory, failed parity or were slower, which are then not tried
again, and the set that was kept, which is then tried first and at once. Speed-up and parity are never remembered.

A file of the cache is only a hint. It is bounded, typed and checked like a recipe when it is read, and one that does
not fit is as good as none.
"""

import hashlib
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from hotlap import __version__
from hotlap.levers._base import Lever
from hotlap.records import run as records
from hotlap.records.errors import RecordError
from hotlap.records.files import cache_folder, read_bytes, write_atomic
from hotlap.records.run import Environment, Facts
from hotlap.records.tune import Dropped, Kept, Trial, Tune

MOST_FILES: Final = 200
MOST_BYTES: Final = 256 << 10
MOST_AGE_S: Final = 90 * 86400.0
HASHED_BYTES: Final = 4 << 20
"""Of a source file or an argument that names a file; of larger ones size and time of change stand for the content."""
MOST_WHY: Final = 300
CLEARLY_SLOWER: Final = 0.98


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A lever that is not worth another try."""

    lever: str
    why: str
    ratio: float | None = None


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the cache. when: seconds since the epoch."""

    version: int = 1
    when: float = 0.0
    kept: tuple[records.Lever, ...] = ()
    failed: tuple[Failed, ...] = ()

    @property
    def date(self) -> str:
        """The day, for people."""
        return time.strftime("%Y-%m-%d", time.localtime(self.when))


# the key


def key_of(command: Sequence[str], cwd: Path, facts: Facts, environment: Environment, options: Sequence[str]) -> str:
    """A name for what a tune's findings depend on, as far as that can be known: see the module."""
    parts: list[Any] = [
        1, __version__, _own_code(), list(command), str(cwd), sorted(options),
        facts.torch, facts.cuda, facts.python, facts.world, facts.device_name, facts.capability,
        environment.cpu, environment.usable_cores, round(environment.memory_gib), environment.driver,
        [gpu.name for gpu in environment.gpus], environment.variables,
        {path: _digest(Path(path)) for path in sorted({*facts.sources, *_arguments(command, cwd)})},
    ]  # fmt: skip
    return hashlib.blake2b(msgspec.json.encode(parts), digest_size=16).hexdigest()


def _arguments(command: Sequence[str], cwd: Path) -> Iterable[str]:
    """Words of the command that name a file: the script, a configuration, `--config=FILE`."""
    for word in command[:256]:
        path = cwd / word.rpartition("=")[2]
        try:
            if path.is_file():
                yield str(path)
        except (OSError, ValueError):
            continue


def _digest(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size > HASHED_BYTES:
            return f"{status.st_size} {status.st_mtime_ns}"
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return "unreadable"


def _own_code() -> str:
    """The levers as they are: another version of one may do what an earlier one did not."""
    import hotlap.levers

    files = sorted(Path(hotlap.levers.__path__[0]).rglob("*.py"))
    return hashlib.blake2b(b"".join(_digest(file).encode() for file in files), digest_size=16).hexdigest()


# reading and writing


def recall(key: str, levers: Mapping[str, Lever], environment: Environment) -> Remembered:
    """What is known under this key, as far as it fits this hotlap and this machine; nothing where there is none."""
    path = cache_folder("tune") / f"{key}.json"
    try:
        if not path.is_file():
            return Remembered()
        known = msgspec.json.decode(read_bytes(path, MOST_BYTES), type=Remembered)
    except (RecordError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Remembered()
    if known.version != 1 or not 0 <= time.time() - known.when < MOST_AGE_S:
        return Remembered()
    kept = tuple(use for use in known.kept if _usable(use, levers, environment))
    failed = tuple(msgspec.structs.replace(one, why=one.why[:MOST_WHY]) for one in known.failed if one.lever in levers)
    names = [use.name for use in kept]
    if len(kept) != len(known.kept) or len(set(names)) != len(names):
        kept = ()
    return msgspec.structs.replace(known, kept=kept, failed=failed)


def _usable(use: records.Lever, levers: Mapping[str, Lever], environment: Environment) -> bool:
    lever = levers.get(use.name)
    return lever is not None and lever.check(use.settings) is None and lever.fits(environment, use.settings) is None


def learned(
    before: Remembered,
    kept: Sequence[Kept],
    dropped: Iterable[Dropped],
    trials: Sequence[Trial],
    noise: float = 0.0,
) -> Remembered:
    """What is worth remembering of a tune. noise: of its baselines, as a logarithm; what it could have made slower is
    not remembered as slower."""
    names = {one.lever for one in kept}
    slower = min(CLEARLY_SLOWER, math.exp(-2 * noise))
    bad = [one for one in dropped if one.lever not in names and _hopeless(one, trials, slower)]
    older = [one for one in before.failed if one.lever not in names and one.lever not in {x.lever for x in bad}]
    return Remembered(
        when=time.time(),
        kept=tuple(records.Lever(name=one.lever, settings=one.settings) for one in kept),
        failed=(*older, *(Failed(lever=one.lever, why=one.why[:MOST_WHY], ratio=one.ratio) for one in bad)),
    )


def of_earlier(tune: Tune) -> Remembered:
    """What an earlier session of the same tune found: its set comes first, what it measured and could not prove before
    what it proved, and what failed is not tried again."""
    known = learned(Remembered(), tune.kept, tune.dropped, tune.trials, tune.noise or 0.0)
    kept = tune.unproved.levers if tune.unproved is not None else known.kept
    return msgspec.structs.replace(known, kept=tuple(kept))


def _hopeless(one: Dropped, trials: Sequence[Trial], slower: float) -> bool:
    """Whether a lever was tried and failed, or was clearly slower."""
    if one.remembered:
        return False
    if one.ratio is not None and one.ratio < slower:
        return True
    wrong = ("crashed", "timeout", "memory", "refused", "too few steps", "parity", "exit code", "signal")
    tried = one.trial is not None or any(one.lever in {x.name for x in trial.requested} for trial in trials)
    return one.why.startswith(wrong) and tried


def store(key: str, known: Remembered) -> None:
    """Write it, and forget the oldest of too many. A cache that can't be written is done without."""
    root = cache_folder("tune")
    try:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomic(root / f"{key}.json", msgspec.json.encode(known))
        files = sorted(root.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in files[:-MOST_FILES]:
            path.unlink(missing_ok=True)
    except (OSError, RecordError):
        return
