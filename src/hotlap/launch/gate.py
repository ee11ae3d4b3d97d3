"""The parent's end of the turnstile: who has arrived, and what they are told (`agent.turnstile` has the protocol)."""

import contextlib
import json
import select
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

MOST_LINE: Final = 1 << 16
MOST_RANKS: Final = 4096


class _Arrival(msgspec.Struct, frozen=True):
    """What a rank says."""

    step: Annotated[int, msgspec.Meta(ge=0)]
    world: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)] = 1


@dataclass
class _Rank:
    connection: socket.socket
    read: bytes = b""
    world: int = 1
    step: int | None = None
    """Steps made when it arrived; None while it is on its way."""
    trains: bool = False
    """It has arrived with steps made: others may only have looked at the data, and started those that train."""


class Gate:
    """Of one command. path: of its socket, in a folder that only this user can enter."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listening.bind(str(path))
        self._listening.listen(128)
        self._ranks: list[_Rank] = []

    def wait(self, seconds: float) -> None:
        """Take in what comes within so many seconds at most, or is there."""
        ranks = {rank.connection: rank for rank in self._ranks}
        ready, _, _ = select.select([self._listening, *ranks], [], [], seconds)
        for one in ready:
            if one is not self._listening:
                self._take(ranks[one])
            elif len(self._ranks) < MOST_RANKS:
                self._ranks.append(_Rank(self._listening.accept()[0]))

    def _take(self, rank: _Rank) -> None:
        more = b""
        with contextlib.suppress(OSError):
            more = rank.connection.recv(65536)
        rank.read += more
        if not more or len(rank.read) > MOST_LINE:
            self._leave(rank)
            return
        line, newline, rest = rank.read.partition(b"\n")
        if newline:
            rank.read = rest
            try:
                arrival = msgspec.json.decode(line, type=_Arrival)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._leave(rank)  # it is none of ours
                return
            rank.step, rank.world = arrival.step, arrival.world
            rank.trains |= rank.step > 0

    def _leave(self, rank: _Rank) -> None:
        rank.connection.close()
        self._ranks.remove(rank)

    @property
    def at_start(self) -> bool:
        """Whether one stands where its loop begins, or after its first steps (`Session.first_steps`)."""
        return any(rank.step == 0 for rank in self._ranks)

    @property
    def arrived(self) -> bool:
        """Whether every rank has made steps and stands at the turnstile."""
        ranks = [rank for rank in self._ranks if rank.trains]
        return bool(ranks) and all(rank.step for rank in ranks) and len(ranks) >= ranks[0].world

    @property
    def step(self) -> int:
        """Steps that had been made on arrival."""
        return min((rank.step for rank in self._ranks if rank.step), default=0)

    def begin(self) -> None:
        """Let those go on that stand there."""
        self._tell([rank for rank in self._ranks if rank.step == 0], {"run": 0})

    def tell(self, order: dict[str, Any]) -> None:
        """Tell all that have arrived."""
        self._tell([rank for rank in self._ranks if rank.step is not None], order)

    def _tell(self, ranks: list[_Rank], order: dict[str, Any]) -> None:
        """One that is gone by now is noticed by `wait`."""
        line = json.dumps(order).encode() + b"\n"
        for rank in ranks:
            rank.step = None
            with contextlib.suppress(OSError):
                rank.connection.sendall(line)

    def close(self) -> None:
        """Whoever waits is told that nobody is here any more."""
        for rank in list(self._ranks):
            self._leave(rank)
        self._listening.close()
        self.path.unlink(missing_ok=True)
