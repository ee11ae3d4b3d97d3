"""`zoo.py sides`: one script of the zoo as it is, by hand and with recipes, without a tune.

A side is `naive`, `hand` or the file of a recipe, with which the naive script then runs. A side may stand twice in a
call: how far it lies from itself is the noise.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zoo_runs import bare, caches, flags, machine, measured, read, steps_of, with_recipe, write
from zoo_table import Row, loss_gap, sides_markdown

PLAIN = {"naive": "", "hand": "_hand"}
"""How the file of each ends."""


def side(text: str) -> str:
    """What an argument names. A path that is none is refused before anything was measured."""
    if text not in PLAIN and not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is neither `naive` nor `hand` nor the file of a recipe")
    return text


def command(name: str, args: argparse.Namespace) -> list[str]:
    """The command of a side; `OUT` in it is the folder of a run."""
    if name in PLAIN:
        return bare(args.script, args, PLAIN[name])
    return with_recipe(args.script, args, Path(name))


def empty(name: str) -> Row:
    """A side that did not run yet."""
    return {"name": name, "recipe": None if name in PLAIN else Path(name).read_text(encoding="utf-8"), "runs": []}


def order(places: list[int], number: int) -> list[int]:
    """The sides of a round in their turns: every second round goes backwards, so that a slow drift cancels."""
    return places[:] if number % 2 == 0 else places[::-1]


def rounds(row: Row, args: argparse.Namespace, folder: Path, until: float) -> Iterator[str]:
    """Add rounds of runs to the row, as many as were asked for and as there is time for; each run is told.

    A side that failed is not run again.
    """
    env = caches(folder, args.warm)
    walls: dict[int, float] = {}
    left = list(range(len(row["sides"])))
    reference: Any = None
    for number in range(args.runs):
        if number and time.monotonic() + sum(walls[place] for place in left) > until:
            row["rounds_why"] = f"the deadline allowed {number} of {args.runs} rounds"
            return
        for place in order(left, number):
            limit = max(10.0, min(args.run_timeout, until - time.monotonic()))
            now = row["sides"][place]
            found, lines = measured(command(now["name"], args), folder / f"{number}-{place}", limit, env)
            walls[place] = found["wall_s"]
            if "error" in found:
                left.remove(place)
            elif (number, place) == (0, 0):
                reference = lines
            now["runs"].append(found | {"round": number, "loss_gap": loss_gap(reference, lines) if reference else None})
            yield f"round {number}, {now['name']}: {found.get('error') or found['lines_ms']}"


def compare(args: argparse.Namespace, folder: Path) -> None:
    """Measure all sides; the row is saved after every run, behind those of earlier calls, and told as a table."""
    folder.mkdir(parents=True)
    until = time.monotonic() + args.deadline
    before: Row = read(args.out) if args.out else {}
    row: Row = {"script": f"{args.script}.py", **machine(), "command": " ".join(["python", *sys.argv])}
    row |= {"cache": "as found" if args.warm else "empty at the start, one for all"}
    row |= {"steps": steps_of(args.script, args), "flags": flags(args.script, args)}
    row["sides"] = [empty(name) for name in args.sides]

    def save() -> None:
        if args.out:
            write(args.out, {**before, "sides": [*before.get("sides", []), row]})

    for told in rounds(row, args, folder, until):
        save()
        print(told, file=sys.stderr, flush=True)
    save()  # with what ended the rounds
    print(sides_markdown(row), end="")
