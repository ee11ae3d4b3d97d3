"""A numeric option in a command: where it stands, and the command with another value there."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hotlap.records.errors import UsageError

LARGEST = 1 << 40
NUMBER = r"\d{1,13}"
JOINED = re.compile(rf"([-+~]*)([^=\s-][^=\s]*)=({NUMBER})", re.ASCII)
"""`--batch_size=12`, `batch_size=12`, `+data.batch_size=12`."""
GLUED = re.compile(rf"-([A-Za-z])({NUMBER})", re.ASCII)
"""`-b12`."""
FLAG = re.compile(r"--?([A-Za-z][^=\s]*)", re.ASCII)


@dataclass(frozen=True)
class Option:
    """Word `at` of the command begins with `before`, and goes on with the value. name: as it stands there."""

    name: str
    at: int
    before: str
    value: int

    def put(self, command: Sequence[str], value: int) -> tuple[str, ...]:
        """The command with another value."""
        return (*command[: self.at], f"{self.before}{value}", *command[self.at + 1 :])


def options_of(command: Sequence[str]) -> Iterator[Option]:
    """All whole numbers in a command that a name goes before, in order."""
    for at, word in enumerate(command[1:], 1):
        if found := JOINED.fullmatch(word):
            name = found[1] + found[2]
            yield Option(name, at, f"{name}=", int(found[3]))
        elif found := GLUED.fullmatch(word):
            yield Option(f"-{found[1]}", at, f"-{found[1]}", int(found[2]))
        elif FLAG.fullmatch(command[at - 1]) and at > 1 and re.fullmatch(NUMBER, word, re.ASCII):
            yield Option(command[at - 1], at, "", int(word))


def option_of(command: Sequence[str], name: str) -> Option:
    """The option of this name; of several the last, which is the one that counts. `-` before it, and `-` or `_` in it,
    make no difference. Raises UsageError."""
    known = list(options_of(command))
    found = [one for one in known if one.name == name] or [one for one in known if _bare(one.name) == _bare(name)]
    if found and found[-1].value > 0:
        return found[-1]
    if found or any(_bare(word.partition("=")[0]) == _bare(name) for word in command):
        raise UsageError(f"{name} has no whole number above 0 in the command; give it one there, as {name} 32")
    others = ", ".join(dict.fromkeys(one.name for one in known)) or "none"
    raise UsageError(
        f"{name} does not stand in the command. Write it there with a value that runs; options with a whole number in "
        f"it: {others}"
    )


def _bare(name: str) -> str:
    return name.lstrip("-+~").replace("_", "-")


def values_of(text: str, what: str) -> tuple[int, ...]:
    """Whole numbers above 0, in order: `64,128`. Raises UsageError."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not all(re.fullmatch(NUMBER, word, re.ASCII) and 0 < int(word) <= LARGEST for word in words):
        raise UsageError(f"{what} {text!r} is no list of whole numbers above 0; write 64,128")
    return tuple(sorted({int(word) for word in words}))
