"""The port at which ranks meet, in sides of a tune alone: several are alive at once, and a script may name one port.

Each side takes a free port in its place. A file beside the side's socket says which, so that all ranks of a side take
the same. What torchrun starts has a free port anyway. That is left alone, and so are ranks that may be on other hosts.
"""

import fcntl
import functools
import socket
from typing import TYPE_CHECKING, Any

import torch

from ..guard import hook
from ..torch_internals import MAKE_STORE

if TYPE_CHECKING:
    from ..core import Agent

PORT = hook("port")
THIS_HOST = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
"""Addresses of a first rank that ranks on other hosts can't have."""


def install(agent: "Agent") -> None:
    """Wrap what makes the store of `env://` and of `tcp://`. It has to be so after hotlap has switched itself off: the
    other ranks take the side's port too."""
    side, original, spare = agent.session.turns, getattr(*MAKE_STORE, None), agent.guard.spare
    if not side or original is None:
        return

    @functools.wraps(original)
    def make_store(hostname: str, port: int, rank: int, world_size: int, *args: Any, **kwargs: Any) -> Any:
        alone = world_size == 1 or hostname in THIS_HOST
        if alone and port and not torch.distributed.is_torchelastic_launched():
            port = spare(PORT, lambda: None, _port_of_side, side, port) or port
        return original(hostname, port, rank, world_size, *args, **kwargs)

    setattr(*MAKE_STORE, make_store)


def _port_of_side(side: str, port: int) -> int:
    """The port that a side takes in place of one: a free one, chosen by the rank that asks first."""
    with open(f"{side}-port-{port}", "a+", encoding="ascii") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        chosen = file.read()
        if not chosen:
            with socket.socket() as free:
                free.bind(("", 0))
                chosen = str(free.getsockname()[1])
            file.write(chosen)
        return int(chosen)
