"""Which ports are replaced where ranks meet. `experiment/test_side.py` shows that sides with one port train at once."""

import dataclasses
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotlap.agent.guard import Guard
from hotlap.agent.hooks import rendezvous
from hotlap.agent.torch_internals import MAKE_STORE
from hotlap.records.session import Session

FIXED = 29500


@dataclasses.dataclass
class Torch:
    """What makes stores, and the problems that there were."""

    problems: list[str] = dataclasses.field(default_factory=list)

    def make(self, hostname: str, port: int, rank: int, world_size: int, timeout: Any, use_libuv: bool = True) -> int:
        return port

    def port(self, hostname: str = "localhost", port: int = FIXED, rank: int = 0, world: int = 2) -> int:
        return self.make(hostname, port, rank, world, None, use_libuv=True)


def one(patch: pytest.MonkeyPatch, turns: str, fail_in: str | None = None) -> Torch:
    """One process of a side, or of a plain run where `turns` is empty."""
    made, guard = Torch(), Guard(fail_in)
    guard.report = lambda where, what, trace, lever: made.problems.append(what)
    patch.setattr(rendezvous, "MAKE_STORE", (made, "make"))
    agent: Any = SimpleNamespace(session=Session("", "", turns=turns), guard=guard)
    rendezvous.install(agent)
    return made


@pytest.fixture(autouse=True)
def plainly_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)


def test_torch_makes_its_stores_there() -> None:
    assert callable(getattr(*MAKE_STORE))


def test_all_ranks_of_a_side_take_one_free_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = [[one(monkeypatch, str(tmp_path / name)) for _ in range(2)] for name in ("000", "001")]
    with socket.socket() as taken:
        taken.bind(("", 0))
        fixed = taken.getsockname()[1]
        ports = [{rank.port(port=fixed, rank=at) for at, rank in enumerate(side)} for side in sides]
    assert [len(found) for found in ports] == [1, 1] and len({fixed}.union(*ports)) == 3
    assert {sides[0][0].port(port=fixed)} == ports[0], "a group that is made again"
    assert sides[0][0].port(port=FIXED) not in ports[0], "two ports stay two"
    for (port,) in ports:
        with socket.socket() as free:
            free.bind(("", port))


@pytest.mark.parametrize(
    ("hostname", "world", "replaced"),
    [
        ("127.0.0.1", 2, True), ("10.0.0.7", 2, False), ("node-3.cluster", 8, False), ("node-3.cluster", 1, True),
        ("localhost", 1, True),
    ],
)  # fmt: skip
def test_ranks_on_other_hosts_meet_where_the_script_says(
    hostname: str, world: int, replaced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (one(monkeypatch, str(tmp_path / "000")).port(hostname, world=world) != FIXED) is replaced


def test_what_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert one(monkeypatch, "").port() == FIXED, "a plain run"
    side = one(monkeypatch, str(tmp_path / "000"))
    assert side.port(port=0) == 0, "any port"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert side.port() == FIXED, "torchrun"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(rendezvous, "MAKE_STORE", (None, "make"))
    rendezvous.install(SimpleNamespace(session=Session("", "", turns="x"), guard=Guard()))  # type: ignore[arg-type]


def test_an_error_leaves_the_port_and_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = one(monkeypatch, str(tmp_path / "gone" / "000"))
    assert nowhere.port() == FIXED and "FileNotFoundError" in nowhere.problems[0]
    failing = one(monkeypatch, str(tmp_path / "000"), fail_in="port")
    assert failing.port() == FIXED and failing.problems == ["RuntimeError: injected into port"]
