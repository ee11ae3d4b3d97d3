"""What the rules of levers share that only set variables: they go with the command, nothing of them into the source."""

import re
from collections.abc import Iterable

import libcst as cst

from hotlap.source.places import Places

from ._base import CannotWrite, Edit

AT_LAUNCH = "set in the environment, in the command to start below; nothing of it is in the source"


def at_launch(places: Places, variables: Iterable[str]) -> Edit:
    """Refuses where the source sets one of the variables itself, which would win or lose by the order of lines."""
    texts = [(s, text) for s in places.project.sources.values() for text in s.every(cst.SimpleString)]
    named = [s.place(text) for s, text in texts if re.split(r"[=:]", str(text.evaluated_value))[0] in variables]
    if named:
        raise CannotWrite("the source sets this in its environment itself", named)
    return Edit(places.project, notes=(AT_LAUNCH,))
