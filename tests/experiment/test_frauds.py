"""Levers that cheat are caught, and honest ones pass, in processes of their own as `hotlap tune` runs and judges them.

`benchmarks/parity_rates.py` measures the rates over many seeds; here each case stands once.
"""

import os
from pathlib import Path

import bench
import pytest
from bench import Bench, Case

from agent.harness import Runner
from hotlap.experiment.judge import NUDGE
from hotlap.experiment.parity import Twins, judge

CAUGHT = {
    "skips every other step (SGD)": "backward calls a step",
    "drops a tenth of the batches": "beyond run-to-run noise",
    "shuffles labels": "other samples, or in another order",
    "NaN late": "the loss is not finite at step 3",
    "gradients × 1.05 (SGD)": "gradient norm differs by 5.00%",
    "gradients × 1.05 (Adam)": "gradient norm differs by 5.00%",
    "every other step without gradients (Adam)": "weight update differs",
    "gradients × 1.05 before they are clipped (SGD)": "gradient norm differs by 5.00%",
    "gradients × 1.05 before they are clipped (Adam)": "gradient norm differs by 5.00%",
    "clipping off (Adam)": "clips its gradients before the first update, and the trial does not",
    "dropout off": "dropout is gone",
    "drops a tenth of the batches, from the tenth, and workers": "with the same random draws for each sample",
    "dropout off, and channels-last": "dropout is gone",
    "half the dropout, and channels-last": "allowed",
    "learns the opposite beside biases without effect": "direction of the first update differs",
    "learning rate × 0.9 (biases without effect)": "late loss differs",
    "every other step without gradients (biases without effect)": "allowed",
    "a GAN whose logits are coarse": "what nudging the weights by one bfloat16 rounding changes",
}
PASSED = {
    "loader-workers": "bitwise",
    "loader-workers (short epochs, dropout)": "bitwise",
    "loader-workers (random transforms)": "redraw",
    "cpu-threads": "numeric",
    "fused-optimizer (SGD)": "numeric",
    "channels-last": "numeric",
    "channels-last (dropout)": "numeric",
    "channels-last + bf16-autocast (dropout)": "numeric",
    "bf16-autocast (dropout)": "numeric",
    "bf16-autocast (GAN)": "numeric",
    "bf16-autocast (Adam, biases without effect)": "numeric",
    "float32 rounding": "numeric",
    "compile": "numeric",
    "fused-optimizer (clipped)": "numeric",
    "bf16-autocast (clipped)": "numeric",
}
CASES = {
    case.name: case
    for case in [*bench.FRAUDS, *bench.HONEST, *bench.DRAWS, *bench.COMPILED, *bench.CLIPS, *bench.NORMS]
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, runner: Runner) -> Bench:
    """One folder for all of pytest's workers, so that they share baselines and twins."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if os.environ.get("PYTEST_XDIST_WORKER") else folder
    (folder / "bench").mkdir(exist_ok=True)
    return Bench(Path(folder / "bench"), runner=runner)


def case(name: str) -> Case:
    return CASES[name]


@pytest.mark.parametrize("name", CAUGHT)
def test_a_fraud_is_caught(name: str, runs: Bench) -> None:
    assert not case(name).honest
    parity = runs.judge(case(name), seed=0)
    assert not parity.ok, parity
    assert CAUGHT[name] in parity.why
    assert parity.steps >= 30, "it was caught by a whole trial, not for want of one"


@pytest.mark.parametrize("name", PASSED)
def test_an_honest_lever_passes(name: str, runs: Bench) -> None:
    assert case(name).honest
    parity = runs.judge(case(name), seed=0)
    assert parity.ok, parity
    assert parity.level in {PASSED[name], "bitwise"}


def test_channels_last_draws_other_masks_and_is_judged_by_a_run_that_does_not(runs: Bench) -> None:
    """Without that run the honest lever would be refused."""
    one = case("channels-last (dropout)")
    base, again = (runs.evidence(one.script, 0, copy=copy) for copy in (0, 1))
    other, same = (
        runs.evidence(one.script, 0, (bench.real("channels-last", **how),)) for how in ({}, {"same_random": True})
    )
    assert base is not None and again is not None and other is not None and same is not None
    twins = Twins([lambda: runs.evidence(one.script, 0, nudge=NUDGE)], [])
    without, within = (judge(one.rule, base, again, trial, twins) for trial in (other, same))
    assert not without.ok and without.level == "numeric" and (without.loss_gap or 0) > 0.05
    assert within.ok and (within.update_gap or 0) < 1e-3 and (within.loss_gap or 0) < 1e-3


def test_planted_levers_are_no_levers_of_a_recipe(runs: Bench) -> None:
    """The door that the frauds come through is not open to recipes, and a wrong name is said."""
    from hotlap.launch.environment import environment
    from hotlap.records.errors import RecipeError
    from hotlap.records.run import Lever
    from hotlap.tune.recipe import levers_of

    recipe = runs.folder / f"recipe-{os.getpid()}.toml"
    recipe.write_text('format = 1\nhotlap = "0"\n[[lever]]\nname = "planted"\n')
    with pytest.raises(RecipeError, match=r"planted.*no such lever"):
        levers_of(recipe, environment(runs.folder))
    assert runs.evidence(bench.MLP, 0, (Lever(name="absent"),)) is None
