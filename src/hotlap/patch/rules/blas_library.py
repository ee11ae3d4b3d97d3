"""`torch.backends.cuda.preferred_blas_library("cublaslt")` after the imports."""

from collections.abc import Mapping

from ..places import Places
from ._base import CannotWrite, Outcome, Rule, Settings, already, at_the_top, calls_named, constant

TEXT = 'torch.backends.cuda.preferred_blas_library("cublaslt")'


def edit(places: Places, settings: Settings, recipe: Mapping[str, Settings]) -> Outcome:
    """Refuses where the source chooses the library itself."""
    calls = calls_named(places, "preferred_blas_library")
    lines = tuple(source.place(call) for source, call in calls)
    if calls and all(call.args and constant(call.args[0].value) == "cublaslt" for _, call in calls):
        return already(places, lines)
    if calls:
        return CannotWrite("the source chooses the library of matrix products itself", lines)
    return at_the_top(places, TEXT)


RULE = Rule("blas-library", edit)
