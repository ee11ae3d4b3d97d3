"""Methods of modules, told by their classes; what a model computes in them is the model's."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

from hotlap.agent.methods import of_modules, owner
from hotlap.records.files import read_record
from hotlap.records.profile import Samples

from .harness import SCRIPTS, Runner, check_clean, check_same


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


class Mixin:
    def mixed(self) -> str | None:
        return owner(sys._getframe())


class Loop:
    def fit(self, model: Any) -> Any:
        return model.loss()


class Field(Mixin, torch.nn.Module):
    @torch.no_grad()
    def loss(self) -> str | None:
        return self.inner()

    @decorated
    def inner(self) -> str | None:
        return owner(sys._getframe())

    def forward(self) -> str | None:
        return owner(sys._getframe())


def test_methods_of_modules_are_told_by_their_classes() -> None:
    names = ["Field.loss", "Field.inner", "Field.forward", "Mixin.mixed", "Loop.fit", "Field.gone", "decorated", "f"]
    functions = [(__file__, name) for name in names] + [("/elsewhere.py", "Field.loss")]
    assert of_modules(functions) == {(__file__, name) for name in names[:4]}
    assert of_modules([]) == set()


def test_the_outermost_of_them_on_the_way_owns_what_is_called() -> None:
    field = Field()
    assert [field.loss(), field.forward(), field.mixed(), Loop().fit(field)] == ["Field", "Field", "Mixin", "Field"]
    assert owner(sys._getframe()) is None


def test_a_model_that_a_method_of_its_own_calls(runner: Runner) -> None:
    """Its layers are the outermost modules that are seen; whose they are is known, and which lines are its own."""
    bare, ran = runner.bare("own_methods.py"), runner.forked("own_methods.py", profile_steps=1)
    check_same(ran, bare)
    check_clean(ran)
    assert {(root.name, root.owner) for root in ran.facts.roots} == {("Linear", "Field")}
    found = read_record(ran.ranks[0].path / "samples.json", Samples)
    script = found.files.index(str(SCRIPTS / "own_methods.py"))
    assert {function for file, function in found.methods if file == script} >= {"Base.hidden", "Field.fit"}
    assert not any(function in {"busy", "<module>"} for _, function in found.methods)
    text = (SCRIPTS / "own_methods.py").read_text().splitlines()
    phases = {(row[0], text[row[2] - 1].rpartition("# ")[2]) for row in found.lines if row[1] == script}
    assert any(at == "between" for _, at in phases)
    assert all(phase == "forward" for phase, at in phases if at == "behind"), "a backward follows: the forward's"
    assert sum(found.equal_looks.values()) > 0
