"""The parent's end of the turnstile, with ranks played by sockets: who is there, and what of theirs is believed."""

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hotlap.launch.gate import MOST_LINE, MOST_RANKS, Gate


class Rank:
    """A process at the turnstile."""

    def __init__(self, gate: Gate, rank: int = 0, world: int = 1) -> None:
        self.gate, self.rank, self.world = gate, rank, world
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(5)
        self.socket.connect(str(gate.path))
        self.read = b""

    def says(self, raw: bytes) -> None:
        self.socket.sendall(raw)
        settle(self.gate)

    def arrives(self, step: int, **more: Any) -> None:
        arrival = {"rank": self.rank, "world": self.world, "pid": 1, "step": step, **more}
        self.says(json.dumps(arrival).encode() + b"\n")

    def leaves(self) -> None:
        self.socket.close()
        settle(self.gate)

    def told(self) -> dict[str, Any]:
        while b"\n" not in self.read:
            more = self.socket.recv(65536)
            assert more, "closed"
            self.read += more
        line, _, self.read = self.read.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def hears_nothing(self) -> bool:
        self.socket.settimeout(0.05)
        try:
            return not self.socket.recv(1)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(5)


def settle(gate: Gate) -> None:
    """Take in all that is there: a connection, and then what it says."""
    for _ in range(6):
        gate.wait(0.01)


@pytest.fixture
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    made = Gate(tmp_path_factory.mktemp("g") / "s")
    yield made
    made.close()


def test_one_process_from_its_start_to_its_end(gate: Gate) -> None:
    assert not gate.at_start and not gate.arrived and gate.step == 0
    rank = Rank(gate)
    rank.arrives(0)
    assert gate.at_start and not gate.arrived
    gate.begin()
    assert rank.told() == {"run": 0} and not gate.at_start
    gate.begin()
    assert rank.hears_nothing(), "it is on its way"
    rank.arrives(12)
    assert gate.arrived and gate.step == 12
    gate.tell({"run": 4, "levers": [["tf32", {}]]})
    assert rank.told() == {"run": 4, "levers": [["tf32", {}]]} and not gate.arrived and gate.step == 0
    rank.arrives(17)
    assert gate.arrived and gate.step == 17
    gate.begin()
    assert rank.hears_nothing() and gate.arrived, "that is for those that have not begun"
    rank.leaves()
    assert not gate.arrived and gate.step == 0


def test_a_world_of_two_has_arrived_when_both_have(gate: Gate) -> None:
    first, second = Rank(gate, 0, 2), Rank(gate, 1, 2)
    first.arrives(0)
    gate.begin()
    second.arrives(0)
    gate.begin()
    assert first.told() == second.told() == {"run": 0}
    first.arrives(9)
    assert not gate.arrived
    second.arrives(9)
    assert gate.arrived and gate.step == 9
    gate.tell({"run": 2})
    assert first.told() == second.told() == {"run": 2}
    second.arrives(12)
    assert not gate.arrived
    first.arrives(12)
    assert gate.arrived
    second.leaves()
    assert not gate.arrived, "one of them is gone"


def test_one_that_only_looked_at_the_data_is_not_waited_for(gate: Gate) -> None:
    """The parent of spawned ranks may have iterated the loader, and waits for them."""
    parent = Rank(gate)
    parent.arrives(0)
    gate.begin()
    assert parent.told() == {"run": 0}
    ranks = [Rank(gate, number, 2) for number in range(2)]
    for rank in ranks:
        rank.arrives(0)
    gate.begin()
    for rank in ranks:
        assert rank.told() == {"run": 0}
        rank.arrives(20)
    assert gate.arrived and gate.step == 20
    gate.tell({"run": 3})
    assert [rank.told() for rank in ranks] == [{"run": 3}] * 2 and parent.hears_nothing()
    parent.leaves()
    for rank in ranks:
        rank.arrives(24)
    assert gate.arrived


def test_one_that_stands_at_its_start_is_not_told_of_a_turn_as_if_it_had_arrived(gate: Gate) -> None:
    """An evaluation in a process of its own comes to its loop while another has a turn: it waits for no steps."""
    trains, looks = Rank(gate), Rank(gate)
    trains.arrives(20)
    assert gate.arrived
    looks.arrives(0)
    assert gate.at_start and gate.step == 20
    gate.begin()
    assert looks.told() == {"run": 0} and trains.hears_nothing()


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"null", b"3", b'"x"', b"\xff\xfe\x00", b"{}", b'{"step": null}', b'{"step": "many"}',
     b'{"step": [1]}', b'{"step": {}, "world": {}}', b'{"step": 1e400}', b'{"step": 3, "world": "two"}',
     b'{"step": 3, "world": null}', b'{"step": NaN}', b'{"step": 3, "world": Infinity}', b'{"world": 2}',
     b'{"step": -1}', b'{"step": true, "world": 0}', b"[" * 5000 + b"]" * 5000],
    ids=lambda line: repr(line)[:40],
)  # fmt: skip
def test_broken_lines_raise_nothing_and_hold_nobody_up(gate: Gate, line: bytes) -> None:
    """What is read is untrusted: the process is the user's."""
    odd, usual = Rank(gate), Rank(gate)
    odd.says(line + b"\n")
    usual.arrives(7)
    odd.leaves()
    assert gate.arrived and gate.step == 7
    gate.tell({"run": 1})
    assert usual.told() == {"run": 1}


def test_a_line_in_pieces_and_two_at_once(gate: Gate) -> None:
    rank = Rank(gate)
    raw = json.dumps({"rank": 0, "world": 1, "step": 5}).encode()
    for at in range(0, len(raw), 7):
        rank.says(raw[at : at + 7])
        assert not gate.arrived
    rank.says(b"\n")
    assert gate.arrived and gate.step == 5


def test_a_line_without_an_end_is_not_read_on_and_on(gate: Gate) -> None:
    rank, other = Rank(gate), Rank(gate)
    rank.socket.setblocking(False)
    sent = 0
    while sent <= 2 * MOST_LINE:
        try:
            sent += rank.socket.send(b"x" * 8192)
        except BlockingIOError:
            gate.wait(0.01)
        except (BrokenPipeError, ConnectionResetError):
            break
    settle(gate)
    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        for _ in range(1000):
            rank.socket.send(b"x")
    other.arrives(3)
    assert gate.arrived


def test_a_rank_that_is_gone_when_it_is_told_raises_nothing(gate: Gate) -> None:
    gone, there = Rank(gate, 0, 2), Rank(gate, 1, 2)
    gone.arrives(4)
    there.arrives(4)
    gone.socket.close()
    gate.tell({"run": 1})
    gate.tell({"run": 1})
    settle(gate)
    assert there.told() == {"run": 1} and not gate.arrived


def test_waiting_takes_as_long_as_it_may_and_no_longer(gate: Gate) -> None:
    begun = time.monotonic()
    gate.wait(0.2)
    assert 0.19 < time.monotonic() - begun < 1.0
    rank = Rank(gate)
    begun = time.monotonic()
    gate.wait(5.0)
    assert time.monotonic() - begun < 1.0
    rank.leaves()


def test_closed_all_are_told_and_nobody_can_come_any_more(gate: Gate) -> None:
    waiting, before = Rank(gate), Rank(gate, 1)
    waiting.arrives(3)
    before.arrives(0)
    gate.close()
    assert waiting.socket.recv(1) == b"" == before.socket.recv(1)
    assert not gate.path.exists() and not gate.arrived
    with pytest.raises(OSError):
        Rank(gate)
    gate.close()


def test_connections_are_bounded(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_RANKS >= 1024
    monkeypatch.setattr("hotlap.launch.gate.MOST_RANKS", 3)
    ranks = [Rank(gate) for _ in range(5)]
    settle(gate)
    ranks[0].arrives(2)
    assert gate.arrived
    begun = time.monotonic()
    gate.wait(0.1)
    assert time.monotonic() - begun < 1.0
