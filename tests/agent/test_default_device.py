"""Scripts that set another default device or dtype: what hotlap makes inside of them names its own."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._device import _device_constructors

from hotlap import agent, levers
from hotlap.agent.probe import nudge
from hotlap.records.session import LeverUse

from .harness import Runner, recorded_losses

FACTORIES = {function.__name__ for function in _device_constructors()} | {"Generator", "normal"}
WHOLE = {"Generator", "randint", "randperm", "tril_indices", "triu_indices"}
"""Those that make no numbers of the default dtype."""
TOO_LITTLE = 1e-30
"""To change a weight."""


@pytest.mark.parametrize("where", ["everywhere", "block"])
@pytest.mark.parametrize(
    "settings",
    [{}, {"probe_steps": 4, "nudge": TOO_LITTLE}, {"levers": (LeverUse("activation-offload", {"least_mib": 0}),)}],
    ids=["watched", "probed", "offloaded"],
)
def test_a_script_with_another_default_device_learns_the_same(
    where: str, settings: dict[str, Any], runner: Runner
) -> None:
    ran = runner.untouched("default_device.py", where, **settings)
    assert len(ran.steps) == 12
    assert len([loss for loss in recorded_losses(ran.steps) if loss is not None]) == 12


def test_weights_are_nudged_alike_whatever_the_defaults_are() -> None:
    usual, other = (torch.nn.Linear(64, 64) for _ in range(2))
    other.load_state_dict(usual.state_dict())
    nudge(usual, 1e-3)
    before, dtype = torch.get_rng_state(), torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            nudge(other, 1e-3)
    finally:
        torch.set_default_dtype(dtype)
    assert torch.equal(usual.weight, other.weight)
    assert torch.equal(before, torch.get_rng_state())


def test_all_that_is_made_in_the_script_names_its_device_and_dtype() -> None:
    """Also what is made on a GPU alone, where pinned memory on a default device of "cuda" is an error."""
    made = [call for package in (agent, levers) for call in factory_calls(Path(package.__path__[0]))]
    assert len(made) > 10
    assert [
        where for where, name, named in made if not named >= ({"device"} if name in WHOLE else {"device", "dtype"})
    ] == []


def factory_calls(folder: Path) -> Iterator[tuple[str, str, set[str | None]]]:
    """Where torch's functions are called that make tensors of nothing: the place, which, and what is named there."""
    for path in sorted(folder.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            name, owner = call.func.attr, ast.unparse(call.func.value)
            if name in FACTORIES and owner.rpartition(".")[2] == "torch":
                named = {keyword.arg for keyword in call.keywords}
                named |= {"device"} if name == "Generator" and call.args else set()
                named |= {"device", "dtype"} if None in named else set()  # `**settings`: by the eye
                yield f"{path.name}:{call.lineno}", name, named
