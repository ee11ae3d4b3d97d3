"""Which functions make a loss, by the source around the line that calls its backward."""

import runpy
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from hotlap.agent.loss_code import LOOKS, Lines

HEAD = """
import other
from math import sqrt

class Tensor:
    def backward(self, *_):
        watch()
        return self
    def __truediv__(self, n):
        return self
    def mean(self):
        return self
    __add__ = __mul__ = __rmul__ = __truediv__

def dice(a, b):
    return Tensor()

def plain(a):
    return Tensor()

class Criterion:
    def __call__(self, a):
        return Tensor()

class Scaler:
    def scale(self, loss):
        return loss
    def backward(self, loss):
        loss.backward()

scaler, criterion = Scaler(), Criterion()

"""
CASES = [
    ("loss = dice(1, 2)\nloss.backward()", ["dice"]),
    ("dice(1, 2).backward()", ["dice"]),
    ("loss = dice(1, 2)\nloss = loss / 4\nscaler.scale(loss).backward()", ["dice"]),
    ("loss = dice(1, 2)\nscaler.backward(loss)", ["dice"]),
    ("first = dice(1, 2)\nsecond = plain(3)\n(first + 0.1 * second).backward()", ["dice", "plain"]),
    ("loss = dice(1, 2)\nloss += plain(3)\nloss.backward()", ["dice", "plain"]),
    ("loss, parts = dice(1, 2), 3\nloss.backward()", ["dice"]),
    ("loss: Tensor = dice(1, 2)\nloss.backward()", ["dice"]),
    ("for k in range(2):\n    if k:\n        loss = dice(1, 2)\n        loss.backward()", ["dice"]),
    ("loss = dice(1, 2); loss.backward()", ["dice"]),
    ("loss = dice(\n    1,\n    2,\n)\nloss.backward(\n)", ["dice"]),
    ("loss = other.made()\nloss.backward()", ["made"]),
    ("loss = plain(1)\nloss = dice(1, 2)\nloss.backward()", ["dice"]),
    ("loss = dice(1, 2)\nloss.backward()\nloss = plain(1)", ["dice"]),
    ("def closure():\n    loss = dice(1, 2)\n    loss.backward()\nclosure()", ["dice"]),
    ("def unused():\n    loss = dice(1, 2)\nloss = plain(1)\nloss.backward()", ["plain"]),
    ("if sqrt(4):\n    loss = dice(1, 2)\nelse:\n    loss = plain(1)\nloss.backward()", ["dice", "plain"]),
    ("if sqrt(4):\n    loss = dice(1, 2)\n    loss.backward()\nelse:\n    loss = plain(1)", ["dice"]),
    ("if not sqrt(4):\n    loss = dice(1, 2)\nelse:\n    loss = plain(1)\n    loss.backward()", ["plain"]),
    ("loss = plain(1)\ntry:\n    loss = dice(1, 2)\nexcept ValueError:\n    pass\nloss.backward()", ["dice", "plain"]),
    ("total = Tensor()\nfor k in range(2):\n    total = total + dice(1, 2)\ntotal.backward()", ["dice"]),
    ("with open(__file__):\n    loss = dice(1, 2)\nloss.backward()", ["dice"]),
    ("made = plain(1)\nloss = criterion(made)\nloss.backward()", []),
    ("made = plain(1)\nloss = dice(made, plain(2))\nloss.backward()", ["dice"]),
    ("parts = [dice(1, 2), plain(3)]\nloss = sum(parts, Tensor())\nloss.backward()", ["dice", "plain"]),
    ("loss = dice(1, 2).mean()\nscaler.scale(loss).backward()", ["dice"]),
    ("loss = Tensor()\nloss.backward()", []),
    ("own = dice\nloss = own(1, 2)\nloss.backward()", None),
    ("loss = (lambda: Tensor())()\nloss.backward()", []),
    ("Scaler().backward(Tensor())", []),
    ("sqrt(4)\nTensor().backward()", []),
]


def found(tmp_path: Path, body: str) -> list[str]:
    """Names of what is found in a script, at its own frames; the order is not promised."""
    (tmp_path / "other.py").write_text("def made():\n    import sys\n    return sys.modules['__main__'].Tensor()\n")
    script = tmp_path / "script.py"
    script.write_text(HEAD + body + "\n")
    own = {str(script), str(tmp_path / "other.py")}
    names: list[str] = []
    at = body.count("\n")

    def watch() -> None:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (frame.f_code.co_name in {"backward"} or frame.f_code.co_filename not in own):
            frame = frame.f_back
        names.extend(maker.__name__ for maker in Lines(own.__contains__).makers(frame))

    assert at >= 0
    runpy.run_path(str(script), {"watch": watch}, "__main__")
    return sorted(names)


@pytest.mark.parametrize("where", ["module", "function"])
@pytest.mark.parametrize(("body", "names"), CASES)
def test_functions_that_make_the_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, body: str, names: list[str] | None
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "other", raising=False)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    if where == "function":
        body = "def main():\n" + "\n".join(f"    {line}" for line in body.split("\n")) + "\nmain()"
    if names is None:  # by another name of the module's own it is found, by a local one not
        names = ["dice"] if where == "module" else []
    assert found(tmp_path, body) == names


def test_a_line_is_looked_at_once_and_some_at_most() -> None:
    lines, seen = Lines(lambda file: file == __file__), []

    def dice() -> Any:
        return None

    for _ in range(3):
        seen.append(lines.makers(sys._getframe()))
    assert seen == [[], [], []] and lines.left == LOOKS - 3


@pytest.mark.parametrize("text", ["", "x = (\n", "\x00", "watch()\n" * 10_001])
def test_source_that_is_not_there_or_can_not_be_read(tmp_path: Path, text: str) -> None:
    script = tmp_path / "gone.py"
    frames: list[FrameType] = []
    exec(compile("watch()", str(script), "exec"), {"watch": lambda: frames.append(sys._getframe(1))})
    script.write_text(text)
    assert Lines(lambda file: file == str(script)).makers(frames[0]) == []


def test_many_ways_to_a_loss_are_looked_at_once_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty terms, each added where it is wanted: the work grows with their number, not with the ways through them."""
    from hotlap.agent import loss_code

    looked: list[str] = []
    original = loss_code._inside
    monkeypatch.setattr(loss_code, "_inside", lambda values: looked.append("") or original(values))
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = ["loss = dice(1, 2)", "other = dice(1, 2)"]
    for _ in range(40):
        lines += ["if sqrt(4):", "    loss = loss + 0.1 * other", "if sqrt(4):", "    other = other + loss"]
    assert found(tmp_path, "\n".join([*lines, "loss.backward()"])) == ["dice"]
    assert len(looked) <= 1 + 2 * (1 + 40) * 2


def test_warnings_of_the_source_are_not_given_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("pattern = '\\d'\nwatch()\n")
    frames: list[FrameType] = []
    exec(compile("\nwatch()", str(script), "exec"), {"watch": lambda: frames.append(sys._getframe(1))})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert Lines(lambda file: file == str(script)).makers(frames[0]) == []
    assert told == []


def test_nothing_is_asked_of_a_frame_for_its_variables(tmp_path: Path) -> None:
    """What a frame was asked for keeps its tensors alive until it returns."""
    import weakref

    class Kept:
        pass

    def step() -> Any:
        thing = Kept()
        Lines(lambda file: file == __file__).makers(sys._getframe())
        gone = weakref.ref(thing)
        del thing
        return gone

    assert step()() is None
