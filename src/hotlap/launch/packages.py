"""Versions of the packages that a process imported, from the names that installers give their folders of metadata."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from hotlap.records.errors import RecordError
from hotlap.records.files import read_words
from hotlap.records.run import Facts, Versions
from hotlap.runs.folder import RankFolder

METADATA: Final = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*?)-(?P<version>\d[\w.!+]*)\.(dist|egg)-info")
MOST_FOLDERS: Final = 16
MOST_INSTALLED: Final = 5000
TOP_LEVEL: Final = 1 << 14
"""Bytes of `top_level.txt` that are read."""
OWN: Final = "hotlap"


def versions_of(ranks: Iterable[RankFolder]) -> Versions | None:
    """Of the first rank that left facts; None where none did, or they can't be read."""
    for rank in ranks:
        try:
            facts = rank.facts
        except RecordError:
            continue
        if facts is not None:
            return told(facts)
    return None


def told(facts: Facts) -> Versions:
    """What a process said of itself, with the packages that it imported."""
    found: dict[str, str] = {}
    for folder, names in list(facts.imported.items())[:MOST_FOLDERS]:
        found |= packages(Path(folder), names)
    return Versions(
        python=facts.python,
        torch=facts.torch,
        cuda=facts.cuda,
        cudnn=facts.cudnn,
        nccl=facts.nccl,
        packages=dict(sorted(found.items())),
    )


def packages(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Version by package of what has these first names in a folder; those that no one package claims are left out."""
    try:
        entries = [entry.name for entry, _ in zip(folder.iterdir(), range(MOST_INSTALLED), strict=False)]
    except (OSError, ValueError):
        return {}
    installed = {_normalized(match["name"]): match for name in entries if (match := METADATA.fullmatch(name))}
    known = list(installed.values())
    found, wanted = {}, set()
    for name in names:
        if (match := installed.pop(_normalized(name), None)) is not None:
            found[match["name"].replace("_", "-")] = match["version"]
        else:
            wanted.add(name)
    claims: dict[str, list[re.Match[str]]] = {}
    for match in installed.values() if wanted else ():
        for name in wanted & _top_level(folder / match[0]):
            claims.setdefault(name, []).append(match)
    alone = (matches[0] for matches in claims.values() if len(matches) == 1)
    found |= {match["name"].replace("_", "-"): match["version"] for match in alone}
    direct = {match["name"].replace("_", "-") for match in known if _is_direct(folder / match[0])}
    return {
        name: f"{version}{'.' if '+' in version else '+'}direct" if name in direct else version
        for name, version in found.items()
        if _normalized(name) != OWN
    }


def _is_direct(metadata: Path) -> bool:
    """Whether it was installed from a file or a repository (PEP 610): an index may have another of its name."""
    return os.path.exists(metadata / "direct_url.json")  # noqa: PTH110 - never raises


def _top_level(metadata: Path) -> set[str]:
    try:
        return set(read_words(metadata / "top_level.txt", TOP_LEVEL).split())
    except RecordError:
        return set()


def _normalized(name: str) -> str:
    """A package's name as indexes compare them."""
    return re.sub(r"[-_.]+", "-", name).lower()
