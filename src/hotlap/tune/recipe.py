"""From kept levers to a recipe, and from a recipe (untrusted) to levers that can be put in."""

import re
from collections.abc import Iterable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Final

from hotlap import __version__
from hotlap.levers import _base as base
from hotlap.levers import all_levers
from hotlap.records.errors import RecipeError
from hotlap.records.files import RECIPE_FORMAT, read_recipe
from hotlap.records.run import Environment, Lever, Versions
from hotlap.records.tune import Recipe, RecipeEvidence, RecipeLever, Tune

VERSION: Final = re.compile(r"\d{1,9}(?:\.\d{1,9})+")
AGAIN: Final = "Run `hotlap tune` again"


def recipe_of(tune: Tune) -> Recipe:
    """The recipe of a tune: levers, settings, evidence, environment."""
    interval = tune.interval
    return Recipe(
        format=RECIPE_FORMAT,
        hotlap=__version__,
        command=tune.command,
        lever=(
            *(RecipeLever(name=one.lever, settings=one.settings, risk=one.risk) for one in tune.fitted),
            *(
                RecipeLever(
                    name=kept.lever,
                    settings=kept.settings,
                    risk=kept.risk,
                    measured=kept.worth.ratio if kept.worth else None,
                    low=kept.worth.interval.low if kept.worth and kept.worth.interval else None,
                    high=kept.worth.interval.high if kept.worth and kept.worth.interval else None,
                )
                for kept in tune.kept
            ),
        ),
        evidence=RecipeEvidence(
            speedup=tune.speedup,
            low=interval.low if interval else None,
            high=interval.high if interval else None,
            starts=tune.starts,
            turns=tune.turns,
            parity=f"{tune.parity.level}: {tune.parity.why}" if tune.parity else "",
            baseline_ms=tune.before_ms,
            tuned_ms=tune.after_ms,
        ),
        environment=_environment(tune.environment, tune.versions, tune.baseline.device_name),
    )


def _environment(environment: Environment, versions: Versions | None, device: str | None) -> dict[str, object]:
    told = versions or Versions(python="", torch="")
    return {
        "python": told.python or environment.python.split(" ")[0],
        "torch": told.torch,
        "cuda": told.cuda or "",
        "cudnn": told.cudnn or "",
        "nccl": told.nccl or "",
        "cpu": environment.cpu,
        "cores": environment.cores,
        "device": device or "cpu",
        "driver": environment.driver or "",
        "git_commit": environment.git_commit or "",
        "git_dirty": bool(environment.git_dirty),
    }


def levers_of(path: Path, machine: Environment, lenient: bool = False) -> tuple[tuple[Lever, ...], list[str]]:
    """The levers of a recipe, and what was passed over (only with `lenient`), in sentences.

    Raises RecipeError for a recipe of another version, unknown levers, wrong settings, levers that exclude each other
    or don't fit the machine.
    """
    recipe = read_recipe(path)
    levers: list[Lever] = []
    passed: list[str] = []
    if other := _other_version(recipe.hotlap):
        if not lenient:
            raise RecipeError(f"{path} was {other}. {AGAIN}, or use it as it is with `--lenient`")
        passed.append(f"the recipe was {other}")
    for entry in recipe.lever:
        wrong = _wrong(entry, levers) or all_levers()[entry.name].fits(machine, entry.settings)
        if wrong is None:
            levers.append(Lever(name=entry.name, settings=entry.settings))
        elif lenient:
            passed.append(f"left out of the recipe: {entry.name}: {wrong}")
        else:
            raise RecipeError(f"{path}: {entry.name}: {wrong}. `--lenient` leaves such levers out")
    return tuple(levers), passed


def checked(path: Path, recipe: Recipe) -> tuple[Lever, ...]:
    """The levers of a recipe for any machine, this one or not. Raises RecipeError as `levers_of` does."""
    levers: list[Lever] = []
    if other := _other_version(recipe.hotlap):
        raise RecipeError(f"{path} was {other}. {AGAIN}")
    for entry in recipe.lever:
        if (wrong := _wrong(entry, levers)) is not None:
            raise RecipeError(f"{path}: {entry.name}: {wrong}")
        levers.append(Lever(name=entry.name, settings=entry.settings))
    return tuple(levers)


def _other_version(written: str) -> str:
    """That a recipe was written by a version whose levers may mean something else: one with another first part that is
    not zero, or others before it. What names no version, as those written by hand may, is not judged."""
    if not VERSION.match(written) or _series(written) == _series(__version__):
        return ""
    return f"written by hotlap {written}; in this version ({__version__}) its levers may differ"


def _series(version: str) -> tuple[int, ...]:
    """The numbers up to the first that is not zero: within them, what is documented keeps working."""
    found = VERSION.match(version)
    numbers = [int(part) for part in found[0].split(".")] if found else []
    zeros = len(list(takewhile(lambda number: number == 0, numbers)))
    return tuple(numbers[: zeros + 1])


def clashing(levers: Mapping[str, base.Lever], lever: base.Lever, active: Iterable[str]) -> list[str]:
    """Levers in use that exclude this one, or that it excludes."""
    return [name for name in active if lever.excluding(levers[name]) or levers[name].excluding(lever)]


def _wrong(entry: RecipeLever, before: Iterable[Lever]) -> str | None:
    lever, present = all_levers().get(entry.name), [one.name for one in before]
    if lever is None:
        return f"this hotlap ({__version__}) has no such lever; it has {', '.join(all_levers())}"
    if entry.name in present:
        return "stands twice"
    if clash := clashing(all_levers(), lever, present):
        return f"can't be used with {clash[0]}"
    return lever.check(entry.settings)
