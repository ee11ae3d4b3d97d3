"""The norm of gradients before the script clips them: evidence of parity, taken in trials alone."""

import json
import re
import warnings
from pathlib import Path

import pytest
import torch

from hotlap.agent.probe import _norm

from .harness import Ran, Runner, check_clean, check_same

UNSEEN = {"none", "by hand", "compiled"}
"""Nothing of these, or nothing that is not in a compiled region, goes through what torch clips with."""


def said(ran: Ran, word: str) -> list[float]:
    return [float(found) for found in re.findall(rf"^{word} (\S+)$", ran.output, re.MULTILINE)]


def updates(ran: Ran) -> list[dict[str, float | None]]:
    lines = (ran.ranks[0].path / "probe.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["what"] == "update"]


@pytest.mark.parametrize(
    "how",
    ["norm", "keywords", "value", "twice", "parts", "each", "some", "accumulated", "scaler", *sorted(UNSEEN)],
)
def test_the_norm_before_the_clip_is_that_of_the_script(how: str, runner: Runner) -> None:
    """Scripts are left as they are; what they return, raise and print is the same."""
    bare, ran = runner.bare("clips.py", how), runner.forked("clips.py", how, probe_steps=4)
    check_clean(ran)
    check_same(ran, bare)
    before, after, lines = said(bare, "before"), said(bare, "after"), updates(ran)
    each = len(before) // len(after)
    assert [line["step"] for line in lines] == [0, 3]
    for line in lines:
        step = int(line["step"] or 0)
        assert line["gradient_norm"] == pytest.approx(after[step], rel=1e-9)
        expected = None if how in UNSEEN else pytest.approx(before[step * each + each - 1], rel=1e-9)
        assert line["unclipped_norm"] == expected
    if how == "norm":
        assert bare.code == 1 and "TypeError" in bare.output


def test_nothing_is_wrapped_but_in_trials(runner: Runner, tmp_path: Path) -> None:
    script = tmp_path / "named.py"
    script.write_text("import torch; print(torch.nn.utils.clip_grad._clip_grads_with_norm_.__code__.co_qualname)")
    for probe_steps, name in ((0, "_no_grad.<locals>._no_grad_wrapper"), (4, "_wrap.<locals>.clip")):
        ran = runner.forked(str(script), probe_steps=probe_steps)
        assert ran.output.splitlines()[0] == name


def test_the_norm_of_complex_gradients_has_both_parts() -> None:
    """Without torch's warning that one is lost, which the script would seem to print."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert float(_norm(torch.tensor([3.0 + 4.0j, 12.0j]))) == pytest.approx(13.0)
