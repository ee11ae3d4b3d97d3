"""Windows of memory, written down event by event as a recorder would."""

from typing import Any

from hotlap.records.memory import ACTIONS, STEP_END, Blocks, Events, Mark, MemoryWindow, Owner

FILE = "/w/train.py"
PHASES = ("data", "forward", "backward", "optimizer")


class Recorded:
    """What happens one after the other, each at the next ns. live: bytes and stack by address; most: bytes so far at
    once, by counting forwards."""

    def __init__(self, step: int = 5) -> None:
        self.step, self.time = step, 0
        self.live: dict[int, tuple[int, int]] = {}
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.marks: list[Mark] = []
        self.owners: list[Owner] = []
        self.lines: list[int] = []
        self.most = 0

    def before(self, address: int, size: int) -> None:
        """It was there before the window."""
        self.live[address] = size, -1
        self._counted()

    def phase(self, name: str) -> None:
        self.marks.append(Mark(self._next(), name, self.step))

    def step_ends(self) -> None:
        self.phase(STEP_END)
        self.step += 1

    def alloc(self, address: int, size: int, line: int = 1) -> None:
        if line not in self.lines:
            self.lines.append(line)
        self.live[address] = size, self.lines.index(line)
        self._event("alloc", address, size, self.lines.index(line))

    def free(self, address: int) -> None:
        self._event("free", address, *self.live.pop(address))

    def owned(self, address: int, category: Any, name: str) -> None:
        self.owners.append(Owner(address, self.live[address][0], category, name, self._next()))

    def window(self, **more: Any) -> MemoryWindow:
        """All of it."""
        rows = [*zip(*self.rows, strict=True)] or [()] * 5
        names = ("actions", "addresses", "bytes", "times", "stacks")
        blocks = {
            "addresses": tuple(self.live),
            "bytes": tuple(size for size, _ in self.live.values()),
            "stacks": tuple(stack for _, stack in self.live.values()),
        }
        fields = {
            "frames": tuple((FILE, line, "main") for line in self.lines),
            "stacks": tuple((at,) for at in range(len(self.lines))),
            "blocks": Blocks(**blocks),  # type: ignore[arg-type]
            "events": Events(**dict(zip(names, rows, strict=True))),
            "marks": tuple(self.marks),
            "owners": tuple(self.owners),
        }
        return MemoryWindow(**{"when": "steady", "device": "cuda:0", "source": "allocator", **fields, **more})

    def _event(self, action: str, address: int, size: int, stack: int) -> None:
        self.rows.append((ACTIONS.index(action), address, size, self._next(), stack))
        self._counted()

    def _counted(self) -> None:
        self.most = max(self.most, sum(size for size, _ in self.live.values()))

    def _next(self) -> int:
        self.time += 1
        return self.time


def steps(count: int = 3, leaks: bool = False, frees_gradients: bool = False) -> Recorded:
    """Steps of one weight of 100 bytes (1) with its state of 200 (2): a batch of 10 (3), an activation of 1000 (4), a
    gradient of 100 (5), something of 50 within the optimizer (6), and what stays of each step, 7 bytes."""
    made = Recorded()
    made.before(1, 100)
    made.before(2, 200)
    for step in range(count):
        made.phase("data")
        made.alloc(3, 10, line=10)
        made.phase("forward")
        made.owned(1, "parameters", "net.weight")
        made.owned(2, "optimizer state", "exp_avg of net.weight")
        made.alloc(4, 1000, line=20)
        if leaks:
            made.alloc(1000 + step, 7, line=21)
            made.owned(1000 + step, "outputs", "losses[…]")
        if 5 in made.live:
            made.free(5)
        made.phase("backward")
        made.alloc(5, 100, line=20)
        made.owned(5, "gradients", "net.weight")
        made.free(4)
        made.phase("optimizer")
        made.alloc(6, 50, line=40)
        made.free(6)
        made.phase("other")
        made.free(3)
        if frees_gradients:
            made.free(5)
        made.step_ends()
    return made
