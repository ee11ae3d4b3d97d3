"""Levers for the repeated blocks of a model and for its head, and those that move what autograd keeps."""

import re

import pytest
import torch

from hotlap.records.run import Lever

from .harness import Ran, Runner, check_clean, check_same, without_log_lines


def checkpointed(every: int) -> tuple[Lever, ...]:
    return (Lever(name="checkpoint-blocks", settings={"every": every}),)


def kept(ran: Ran) -> int:
    found = re.search(r"^kept (\d+)$", ran.output, re.MULTILINE)
    assert found, ran.output
    return int(found[1])


def but_kept(ran: Ran) -> str:
    return re.sub(r"^kept \d+\n", "", without_log_lines(ran.output), flags=re.MULTILINE)


def test_checkpointed_blocks_compute_the_same_and_keep_less(runner: Runner) -> None:
    """Losses, weights, running statistics, random numbers drawn, and copies: bit for bit."""
    options = ("--evaluate", "--varied")
    bare = runner.bare("blocks.py", *options)
    every, other = (runner.forked("blocks.py", *options, levers=checkpointed(k)) for k in (1, 2))
    for ran in (every, other):
        check_clean(ran)
        assert but_kept(ran) == but_kept(bare)
    (root,) = every.facts.roots
    assert (root.blocks, root.block, root.shapes) == (4, "Block", 2)
    assert every.facts.memory is None
    assert kept(every) < kept(other) < kept(bare)
    assert kept(every) < 0.3 * kept(bare)


def test_the_hook_of_weight_norm_may_run_again(runner: Runner) -> None:
    bare, ran = runner.bare("blocks.py", "--normed"), runner.forked("blocks.py", "--normed", levers=checkpointed(1))
    check_clean(ran)
    assert but_kept(ran) == but_kept(bare) and kept(ran) < kept(bare)


@pytest.mark.parametrize(
    ("option", "why"), [("--counts", "Block changes its own calls"), ("--hooked", "forward hooks")]
)
def test_a_block_that_counts_its_forwards_or_has_hooks_is_left_alone(option: str, why: str, runner: Runner) -> None:
    """And what it counted in the first backward is put back."""
    ran = runner.forked("blocks.py", option, levers=checkpointed(1))
    check_same(ran, runner.bare("blocks.py", option))
    assert {problem.lever for problem in ran.problems} == {"checkpoint-blocks"}
    assert why in ran.problems[0].what


def test_a_model_without_blocks_says_so(runner: Runner) -> None:
    ran = runner.forked("updates.py", levers=checkpointed(1))
    assert "no repeated blocks" in ran.problems[0].what


def test_offloaded_activations_are_the_same(runner: Runner) -> None:
    bare = runner.bare("blocks.py")
    ran = runner.forked("blocks.py", levers=(Lever(name="activation-offload", settings={"least_mib": 0}),))
    check_clean(ran)
    assert but_kept(ran) == but_kept(bare)


@pytest.mark.skipif(not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="torch has it from 2.13 on")
def test_logits_that_nobody_reads_are_not_kept(runner: Runner) -> None:
    """Those that the script reads after the update are the ones from before it."""
    bare = runner.bare("vocabulary.py")
    ran = runner.forked("vocabulary.py", levers=(Lever(name="linear-cross-entropy", settings={"parts": 4}),))
    check_clean(ran)
    assert but_kept(ran) == but_kept(bare)
    assert kept(ran) < 0.5 * kept(bare)
