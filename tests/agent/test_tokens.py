"""Tokens of a step: counted where they are certainly tokens, else not known."""

import sys

import pytest
import torch
from torch import nn

from hotlap.agent.tokens import LOOKS, Tokens
from hotlap.diagnose.diagnose import diagnose
from hotlap.diagnose.steps import steady_steps, throughput, token_rate
from hotlap.records.run import Phases, Step
from hotlap.runs.folder import RunFolder

from .harness import Runner, check_same

SEVERAL = [30, 36]
"""Two forwards of 3 rows of 5, or of 6, a step."""


@pytest.mark.parametrize("kind", ["text", "flat", "loss", "ids", "classes", "pairs"])
def test_steps_hold_tokens_where_the_result_has_one_for_each(kind: str, runner: Runner) -> None:
    ran = runner.forked("tokens.py", kind)
    told = [step.tokens for step in ran.steps]
    if kind not in {"text", "flat"}:
        assert told == [None] * len(told)
        return
    assert told == SEVERAL * (len(told) // 2) and [step.samples for step in ran.steps] == [6] * len(told)
    steady = steady_steps(ran.steps, ran.facts)
    tokens, rows = token_rate(steady), throughput(steady)
    assert tokens is not None and rows is not None and 5 <= tokens / rows <= 6


def test_a_run_tells_its_rate_and_its_versions(runner: Runner) -> None:
    ran = runner.under(["tokens.py", "text"])
    found = diagnose(ran.folder)  # type: ignore[arg-type]
    assert found.tokens_s is not None and found.throughput is not None and found.tokens_s > 4 * found.throughput
    versions = RunFolder(ran.folder).record.versions  # type: ignore[arg-type]
    assert versions is not None and versions.torch == str(torch.__version__) == versions.packages["torch"]
    assert versions.python == sys.version.split()[0] and "hotlap" not in versions.packages


def test_nothing_is_computed_for_it(runner: Runner) -> None:
    check_same(runner.forked("tokens.py", "text"), runner.bare("tokens.py", "text"))


EMBEDS, NONE = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
IDS = torch.zeros(2, 3, dtype=torch.int64)
HANDED = {
    "more of the same size": ([IDS, {"mask": IDS.int()}], torch.zeros(2, 3, 4), 6),
    "the sequence first": ([IDS], torch.zeros(3, 2, 4), 6),
    "labels beside": ([IDS, torch.zeros(2, dtype=torch.int64)], (torch.zeros(()), torch.zeros(6, 4)), 6),
    "another length beside": ([IDS, torch.zeros(2, 5, dtype=torch.int64)], torch.zeros(2, 3, 4), 0),
    "one number for each": ([IDS], torch.zeros(2, 3), 0),
    "one channel": ([IDS], torch.zeros(2, 3, 1), 0),
    "a length of one": ([IDS[:, :1]], torch.zeros(2, 1, 4), 0),
    "booleans": ([IDS.bool()], torch.zeros(2, 3, 4), 0),
    "real numbers": ([IDS.float()], torch.zeros(2, 3, 4), 0),
    "an image": ([torch.zeros(2, 3, 4, 4, dtype=torch.int64)], torch.zeros(2, 3, 4), 0),
    "no result": ([IDS], None, 0),
}


@pytest.mark.parametrize("name", HANDED)
def test_what_is_no_token_is_not_counted(name: str) -> None:
    handed, output, count = HANDED[name]
    assert Tokens().of(1, EMBEDS, handed, output) == count
    assert Tokens().of(1, NONE, handed, output) == 0


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_has_no_size() -> None:
    nested = torch.nested.nested_tensor([IDS[0], IDS[0, :2]])
    assert Tokens().of(1, EMBEDS, [nested], torch.zeros(2, 3, 4)) == 0
    assert Tokens().of(1, EMBEDS, [IDS], torch.nested.nested_tensor([torch.zeros(3, 4)] * 2)) == 0


def test_embedding_bags_take_category_ids() -> None:
    bags = nn.Sequential(nn.EmbeddingBag(9, 4))
    assert Tokens().of(1, bags, [IDS], torch.zeros(2, 3, 4)) == 0


@pytest.mark.parametrize(
    "module", [nn.Embedding(9, 4), nn.ModuleDict({"u": nn.Embedding(9, 4), "v": nn.Embedding(9, 4)})]
)
def test_a_lookup_alone_does_not_say_of_what_it_is(module: nn.Module) -> None:
    """Of a word2vec whose script calls `model.forward`: the outermost module looks up 5 negative samples a row."""
    assert Tokens().of(1, module, [IDS], torch.zeros(2, 3, 4)) == 0


def test_the_first_module_that_takes_tokens_is_the_one() -> None:
    """As of a model that trains beside one that it is compared with."""
    tokens = Tokens()
    assert tokens.of(1, NONE, [IDS], IDS.float()) == 0
    assert tokens.of(2, EMBEDS, [IDS], torch.zeros(2, 3, 4)) == 6
    assert tokens.of(3, EMBEDS, [IDS], torch.zeros(2, 3, 4)) == 0
    assert tokens.of(2, EMBEDS, [IDS[:, :2]], None) == 4


def test_a_module_that_does_not_show_it_soon_is_not_looked_at_for_ever() -> None:
    tokens = Tokens()
    for _ in range(LOOKS):
        assert tokens.of(1, EMBEDS, [IDS], None) == 0
    assert tokens.of(1, EMBEDS, [IDS], torch.zeros(2, 3, 4)) == 0


def test_a_rate_needs_every_step_that_was_looked_at() -> None:
    def rate(*tokens: int | None) -> float | None:
        some = [Step(step=at, time=at, wall_ms=10.0, phases=Phases(), tokens=one) for at, one in enumerate(tokens)]
        return token_rate(steady_steps(some, None))

    assert rate(*[20] * 30) == pytest.approx(2000.0)
    assert rate(*[20] * 29, None) is None and rate(*[None] * 30) is None
