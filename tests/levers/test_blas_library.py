"""`blas-library`: which models have products to speak of, and that a library which the script prefers stays."""

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from contexts import ROOT, context
from msgspec.structs import replace

from hotlap.agent.seams import Refused
from hotlap.levers import blas_library
from hotlap.levers._base import Context
from hotlap.levers.blas_library import LEVER, VARIABLES

LINEAR = replace(ROOT, conv=0, conv_input_4d=False, devices=("cuda:0",))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_it_is_for_products_on_a_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    found = context(True, roots=(LINEAR,))
    assert LEVER.applies(found).yes and 0.02 < LEVER.share(found) < 0.1
    amd = Context(found.diagnosis, replace(found.facts, cuda=None), found.environment, {})
    refused = {
        "CPU": context(False, roots=(LINEAR,)),
        "ROCm": amd,
        "launches": context(True, bound="launch", roots=(LINEAR,)),
        "convolves": context(True, roots=(replace(LINEAR, modules=151, conv=53),)),
        "no module": context(True, roots=()),
    }
    for why, where in refused.items():
        assert not LEVER.applies(where).yes and why in LEVER.applies(where).why
    assert LEVER.applies(context(True, roots=(replace(LINEAR, modules=9, conv=3, sdpa=True),))).yes
    monkeypatch.setenv(VARIABLES[0], "0")
    assert VARIABLES[0] in LEVER.applies(found).why


class Libraries:
    """torch's switch, of a build that has both. It warns as torch does."""

    def __init__(self, name: str) -> None:
        self.name, self.set = name, 0

    def __call__(self, backend: str | None = None) -> Any:
        if backend is not None:
            warnings.warn("an experimental feature", stacklevel=1)
            self.name, self.set = backend.capitalize(), self.set + 1
        return SimpleNamespace(name=self.name)


def before_a_forward(library: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the agent calls, in a process whose torch has this switch."""
    asked: list[Any] = []
    LEVER.install(SimpleNamespace(on_root=lambda change, undo: asked.append(change)), {})  # type: ignore[arg-type]
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", library, raising=False)
    (prefer,) = asked
    return prefer


@pytest.mark.filterwarnings("error")
def test_it_prefers_the_other_library_once_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Libraries("Cublas")
    prefer = before_a_forward(library, monkeypatch)
    assert library.set == 0, "not before the script could say what it prefers"
    prefer(None)
    prefer(None)
    assert (library.name, library.set) == ("Cublaslt", 1)


@pytest.mark.parametrize("own", ["Cublaslt", "Ck"])
def test_a_library_that_the_script_prefers_stays(own: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Libraries(own)
    with pytest.raises(Refused, match=own):
        before_a_forward(library, monkeypatch)(None)
    assert library.set == 0


def test_an_older_torch_has_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Refused, match="no choice"):
        before_a_forward(None, monkeypatch)(None)


def test_torchs_own_switch_is_as_the_lever_takes_it() -> None:
    assert torch.backends.cuda.preferred_blas_library().name == blas_library.USUAL
    assert blas_library.LIBRARY in torch.backends.cuda._BlasBackends
