"""The judge on hand-made evidence: what passes, what fails, and which reason is given."""

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hotlap.agent.probe import nudge
from hotlap.experiment import parity as module
from hotlap.experiment.evidence import Evidence, ProbeLine, gaps, read_evidence, samples
from hotlap.experiment.judge import NUDGE, NUDGES
from hotlap.experiment.parity import Rule, Twins, judge

EXACT = Rule(numeric=False, tolerance=0.0, redraws=False)
NUMERIC = Rule(numeric=True, tolerance=0.02, redraws=False)
REDRAWS = Rule(numeric=False, tolerance=0.0, redraws=True)
STEPS = 40
BASE_LOSSES = 2.0 * np.exp(-np.arange(STEPS) / 30) + 0.1 * np.random.default_rng(0).standard_normal(STEPS)


def losses(values: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple((float(value),) for value in values)


def update(step: int, norm: float = 1.0, gradient: float = 2.0, turn: float = 0.0, optimizer: int = 0) -> ProbeLine:
    """An update in the plane, turned by an angle."""
    direction = (math.cos(turn), math.sin(turn), 0.5)
    return ProbeLine(
        what="update", step=step, gradient_norm=gradient, update_norm=norm, update=direction, optimizer=optimizer
    )


def batch(number: int, *leaves: tuple[str, list[str]]) -> ProbeLine:
    return ProbeLine(what="batch", batch=number, leaves=tuple({"kind": kind, "rows": rows} for kind, rows in leaves))


def batches(images: str = "i", labels: str = "l", count: int = 5) -> tuple[ProbeLine, ...]:
    return tuple(batch(n, ("float", [f"{images}{n}"]), ("int", [f"{labels}{n}"])) for n in range(count))


BASE = Evidence(losses(BASE_LOSSES), (update(0), update(3, 4.0)), batches(), draws=False)


def noisy(size: float, seed: int) -> Evidence:
    """The baseline with noise of this relative size on everything."""
    draw = np.random.default_rng(seed)

    def near(value: float) -> float:
        return value * (1 + size * draw.standard_normal())

    changed = tuple(
        replace_line(line, gradient_norm=near(line.gradient_norm or 0), update_norm=near(line.update_norm or 0))
        for line in BASE.updates
    )
    return replace(BASE, losses=losses(np.array([near(x) for (x,) in BASE.losses])), updates=changed)


def replace_line(line: ProbeLine, **changes: object) -> ProbeLine:
    import msgspec

    return msgspec.structs.replace(line, **changes)


def scaled(by: float) -> Evidence:
    return replace(BASE, losses=losses(BASE_LOSSES * by))


def never() -> Evidence | None:
    raise AssertionError("no twin is needed here")


def twins(nudged: Evidence | None = None, redrawn: Evidence | None = None, **pinned: object) -> Twins:
    return Twins([lambda: nudged], [lambda: redrawn], **pinned)  # type: ignore[arg-type]


NO_TWINS = Twins(never, never)


# bit for bit


@pytest.mark.parametrize("rule", [EXACT, NUMERIC, REDRAWS])
def test_the_same_is_bitwise_whatever_the_rule(rule: Rule) -> None:
    found = judge(rule, BASE, BASE, BASE, NO_TWINS)
    assert (found.ok, found.level, found.loss_gap, found.allowed) == (True, "bitwise", 0.0, 0.0)
    assert found.steps == STEPS and found.samples == "the same samples in the same order"


def test_one_bit_is_not_bitwise() -> None:
    last = float(np.nextafter(BASE_LOSSES[-1], 10))
    trial = replace(BASE, losses=(*BASE.losses[:-1], (last,)))
    found = judge(EXACT, BASE, BASE, trial, NO_TWINS)
    assert (found.ok, found.level) == (False, "exact") and "beyond run-to-run noise" in found.why
    assert judge(NUMERIC, BASE, BASE, trial, NO_TWINS).ok


@pytest.mark.parametrize(
    "trial",
    [
        replace(BASE, updates=(update(0, gradient=2.0 + 1e-12), update(3, 4.0))),
        replace(BASE, updates=(update(0, norm=1.0 + 1e-12), update(3, 4.0))),
        replace(BASE, updates=(update(0, turn=1e-9), update(3, 4.0))),
        replace(BASE, updates=(update(0),)),
        replace(BASE, updates=()),
    ],
)
def test_an_exact_lever_may_change_no_gradient_and_no_update(trial: Evidence) -> None:
    assert not judge(EXACT, BASE, BASE, trial, NO_TWINS).ok


def test_steps_beyond_the_shorter_run_are_not_compared() -> None:
    longer = replace(BASE, losses=(*BASE.losses, (99.0,)))
    assert judge(EXACT, BASE, BASE, longer, NO_TWINS).ok
    assert judge(EXACT, longer, longer, BASE, NO_TWINS).ok


# elements whose gradient is but rounding


def with_rounding(last: float, first: tuple[int, ...] = (2,), later: tuple[int, ...] = (2,), **turn: float) -> Evidence:
    """The baseline, whose sampled weights' last one moved by this."""
    updates = []
    for line, rounding in ((update(0, **turn), first), (update(3, 4.0, **turn), later)):
        values = (*line.update[:2], last)
        updates.append(replace_line(line, update=values, update_norm=math.hypot(*values), rounding=rounding))  # type: ignore[misc]
    return replace(BASE, updates=tuple(updates))


SMALL = with_rounding(0.1)


def test_what_adam_makes_of_rounding_is_left_out() -> None:
    """A bias before a BatchNorm moves by little in float32 and by the learning rate in bfloat16, either way."""
    for last in (1.0, -1.0):
        found = judge(NUMERIC, SMALL, SMALL, with_rounding(last, (), ()), NO_TWINS)
        assert found.ok and (found.update_gap or 0) < 1e-6
    blind = with_rounding(0.1, (), ())
    assert not judge(NUMERIC, blind, blind, with_rounding(1.0), twins(blind)).ok, "a record of before is compared whole"


@pytest.mark.parametrize("rounding", [(2,), (0, 1, 2)])
def test_only_the_bare_command_says_what_is_left_out(rounding: tuple[int, ...]) -> None:
    one = with_rounding(0.1, (), ())
    assert not judge(NUMERIC, one, one, with_rounding(1.0, rounding, rounding), twins(one)).ok
    turned = with_rounding(0.1, rounding, rounding, turn=1.0)
    assert not judge(NUMERIC, SMALL, SMALL, turned, twins(SMALL)).ok, "what is beside it is compared"


def test_what_was_rounding_only_at_first_or_only_later_is_compared() -> None:
    moved = with_rounding(1.0)
    for first, later in (((2,), ()), ((), (2,))):
        base = with_rounding(0.1, first, later)
        assert not judge(NUMERIC, base, base, moved, twins(base)).ok


def test_nothing_is_left_out_where_all_would_be() -> None:
    every = with_rounding(0.1, (0, 1, 2), (0, 1, 2))
    assert not judge(NUMERIC, every, every, with_rounding(1.0), twins(every)).ok


def test_an_exact_lever_may_not_change_what_is_left_out() -> None:
    close = with_rounding(0.1 + 1e-9)
    for trial in (close, replace(close, updates=(SMALL.updates[0], close.updates[1]))):
        found = judge(EXACT, SMALL, SMALL, trial, NO_TWINS)
        assert (found.ok, found.level) == (False, "exact")


def test_what_is_no_number_is_over_any_limit_though_it_is_left_out() -> None:
    broken = tuple(replace_line(line, update=(*line.update[:2], None), update_norm=None) for line in SMALL.updates)
    assert not judge(NUMERIC, SMALL, SMALL, replace(SMALL, updates=broken), twins(SMALL)).ok


# what is never excused

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize("rule", [EXACT, NUMERIC, REDRAWS])
@pytest.mark.parametrize("at", [0, STEPS // 2, STEPS - 1])
def test_nan_never_passes(rule: Rule, at: int) -> None:
    rows = list(BASE.losses)
    rows[at] = (NAN,)
    found = judge(rule, BASE, BASE, replace(BASE, losses=tuple(rows)), twins(noisy(9.0, 1), noisy(9.0, 2)))
    assert not found.ok and f"not finite at step {at}" in found.why


def test_nan_after_the_compared_steps_never_passes() -> None:
    longer = replace(BASE, losses=(*BASE.losses, (NAN,)))
    found = judge(NUMERIC, BASE, BASE, longer, NO_TWINS)
    assert not found.ok and "after the compared steps" in found.why


def test_nan_in_one_of_several_backwards_never_passes() -> None:
    two = Evidence(tuple((x, 2 * x) for (x,) in BASE.losses))
    broken = Evidence((*two.losses[:-1], (1.0, NAN)))
    assert not judge(NUMERIC, two, two, broken, NO_TWINS).ok


def test_nan_that_the_command_makes_itself_is_not_the_levers_fault() -> None:
    rows = ((NAN,), *BASE.losses[1:])
    own = replace(BASE, losses=rows)
    assert judge(EXACT, own, own, own, NO_TWINS).ok
    other = replace(own, losses=(*rows[:-1], (NAN,)))
    assert not judge(EXACT, own, own, other, NO_TWINS).ok


def test_infinite_updates_never_pass() -> None:
    wild = replace(BASE, updates=(replace_line(update(0), update=(None, 0.0, 0.5), update_norm=None), update(3, 4.0)))
    assert not judge(NUMERIC, BASE, BASE, wild, twins(noisy(0.01, 1))).ok


@pytest.mark.parametrize("steps", [0, 1, module.LEAST_STEPS - 1])
def test_too_few_steps(steps: int) -> None:
    few = replace(BASE, losses=BASE.losses[:steps])
    found = judge(NUMERIC, BASE, BASE, few, NO_TWINS)
    assert not found.ok and f"only {steps} steps" in found.why
    assert not judge(NUMERIC, few, few, few, NO_TWINS).ok


def test_losses_that_vanish() -> None:
    gone = replace(BASE, losses=((INF,),) * STEPS)
    found = judge(NUMERIC, BASE, BASE, gone, NO_TWINS)
    assert not found.ok and "no loss was seen in the trial" in found.why


def test_nothing_to_compare_is_not_the_same() -> None:
    blind = Evidence(((INF,),) * STEPS)
    found = judge(EXACT, blind, blind, blind, NO_TWINS)
    assert not found.ok and "nothing can be compared" in found.why


def test_a_loop_without_losses_is_compared_by_its_updates() -> None:
    silent = replace(BASE, losses=((INF,),) * STEPS)
    assert judge(EXACT, silent, silent, silent, NO_TWINS).ok
    other = replace(silent, updates=(update(0, norm=1.2), update(3, 4.0)))
    assert not judge(NUMERIC, silent, silent, other, twins(silent)).ok


@pytest.mark.parametrize(
    ("norm", "turn", "ok"), [(1.005, 0.0, True), (1.0, 0.005, True), (1.03, 0.0, False), (1.0, 0.1, False)]
)
def test_outputs_of_inference_are_held_to_the_tolerance_itself(norm: float, turn: float, ok: bool) -> None:
    def outputs(norm: float, turn: float) -> Evidence:
        lines = tuple(replace_line(update(n, norm, turn=turn), gradient_norm=None) for n in range(4))
        return Evidence(((math.inf,),) * 20, lines)

    bare = outputs(1.0, 0.0)
    rule = Rule(numeric=True, tolerance=0.01, redraws=False)
    assert judge(rule, bare, bare, outputs(norm, turn), Twins([], [])).ok == ok


def test_dropout_that_vanishes() -> None:
    drawing = replace(BASE, draws=True)
    found = judge(NUMERIC, drawing, drawing, BASE, NO_TWINS)
    assert not found.ok and "dropout is gone" in found.why
    assert judge(EXACT, drawing, drawing, drawing, NO_TWINS).ok
    assert judge(EXACT, drawing, drawing, replace(drawing, draws=None), NO_TWINS).ok, "unknown is not gone"


def test_steps_of_other_backward_calls() -> None:
    two = replace(BASE, losses=tuple((x, x) for (x,) in BASE.losses))
    found = judge(NUMERIC, BASE, BASE, two, NO_TWINS)
    assert not found.ok and "2 backward calls a step; the command makes 1" in found.why
    first = replace(BASE, losses=((1.0, 1.0), *BASE.losses[1:]))
    assert judge(EXACT, first, first, first, NO_TWINS).ok


def test_losses_too_large_to_square_don_t_pass_for_the_same() -> None:
    huge = Evidence(losses(np.full(STEPS, 1e308)))
    with np.errstate(over="ignore", invalid="ignore"):
        assert not judge(NUMERIC, huge, huge, Evidence(losses(np.full(STEPS, 1e307))), twins(huge)).ok


def test_a_twin_that_can_t_be_compared_allows_nothing() -> None:
    """It has other updates, so its distance is infinite: that must not make the limit infinite."""
    trial = replace(BASE, updates=(update(0, norm=1.5), update(3, 9.0)))
    assert not judge(NUMERIC, BASE, BASE, trial, twins(replace(BASE, updates=()))).ok
    assert not judge(EXACT, BASE, replace(BASE, updates=()), trial, NO_TWINS).ok


# run-to-run noise


@pytest.mark.parametrize("size", [1e-7, 1e-4, 1e-2])
def test_exact_levers_may_differ_as_the_command_does(size: float) -> None:
    passed = [judge(EXACT, BASE, noisy(size, 2 * n), noisy(size, 2 * n + 1), NO_TWINS) for n in range(1, 60)]
    assert {found.level for found in passed if found.ok} == {"run-to-run"}
    worse = [judge(EXACT, BASE, noisy(size, n), noisy(20 * max(size, 1e-4), n + 99), NO_TWINS) for n in range(1, 60)]
    assert not any(found.ok for found in worse)
    refused = sum(not found.ok for found in passed)
    assert refused <= 20, "one pair of runs is a poor measure of noise, but no worse than this"
    if size < 1e-5:
        assert refused == 0, "below AA_LEAST differences are rounding"


def test_noise_does_not_excuse_more_than_three_times_itself() -> None:
    found = judge(EXACT, BASE, scaled(1.001), scaled(1.01), NO_TWINS)
    assert not found.ok and found.allowed == pytest.approx(0.003, rel=0.1)
    assert judge(EXACT, BASE, scaled(1.001), scaled(1.002), NO_TWINS).ok


def grown(by: float) -> Evidence:
    """The baseline, whose losses run away from the tenth step on: rounding that grew."""
    away = np.where(np.arange(STEPS) < 10, 0.0, by * np.arange(STEPS) / STEPS)
    return replace(BASE, losses=losses(BASE_LOSSES * (1 + away)))


def test_what_grew_from_noise_may_grow_as_far_as_a_nudge_does() -> None:
    """Seen: two bare runs of a graph network 0.05% apart, a third 0.2%, one with more workers 0.25%."""
    again, trial = noisy(1e-6, 1), grown(0.005)
    found = judge(EXACT, BASE, again, trial, twins(nudged=grown(0.004)))
    assert (found.ok, found.level) == (True, "run-to-run") and "nudging" in found.why
    assert not judge(EXACT, BASE, again, trial, twins(nudged=grown(0.001))).ok
    assert not judge(EXACT, BASE, again, scaled(1.005), twins(nudged=scaled(1.1))).ok, "it began with the first step"
    turned = replace(trial, updates=(update(0, norm=1.001), update(3, 4.0)))
    assert not judge(EXACT, BASE, again, turned, twins(nudged=scaled(1.1))).ok, "its first update differs"
    assert not judge(EXACT, BASE, BASE, trial, twins(nudged=scaled(1.1))).ok, "the command does not differ from itself"
    pair = pinned(again, replace(trial, updates=again.updates))
    assert judge(REDRAWS, BASE, again, scaled(1.3), twins(nudged=grown(0.004), **pair)).ok
    assert not judge(REDRAWS, BASE, again, scaled(1.3), twins(nudged=grown(0.001), **pair)).ok


# numeric levers


def test_numeric_levers_keep_to_their_tolerance_without_a_twin() -> None:
    assert judge(NUMERIC, BASE, BASE, scaled(1.01), NO_TWINS).level == "numeric"
    tight = replace_rule(NUMERIC, tolerance=0.005)
    assert not judge(tight, BASE, BASE, scaled(1.01), twins(BASE)).ok


def replace_rule(rule: Rule, **changes: object) -> Rule:
    return replace(rule, **changes)  # type: ignore[arg-type]


def test_the_limit_that_held_is_the_one_that_is_named() -> None:
    """A gap of 3.6% in a command that differs from itself by 9% was told to be within a tolerance of 2%."""
    again, trial = scaled(1.09), scaled(1.036)
    trial = replace(trial, updates=(update(0, gradient=2.02), update(3, 4.0)))
    found = judge(NUMERIC, BASE, again, trial, NO_TWINS)
    assert (found.ok, found.level) == (True, "numeric")
    assert found.allowed == pytest.approx(3 * 0.09, rel=0.1)
    assert "the stated tolerance of 2.0%, or 3 times what two runs of the bare command differ" in found.why
    assert f"({found.allowed:.1%} of the loss) where that is more" in found.why
    near = judge(NUMERIC, BASE, again, replace(trial, losses=scaled(1.01).losses), NO_TWINS)
    assert (near.why, near.allowed) == ("within the stated tolerance of 2.0%", 0.02)


def test_a_twin_that_widens_other_limits_is_not_named_for_the_losses() -> None:
    trial = replace(scaled(1.01), updates=(update(0, gradient=2.08), update(3, 4.0)))
    nudged = replace(BASE, updates=(update(0, gradient=2.06), update(3, 4.0)))
    found = judge(NUMERIC, BASE, BASE, trial, twins(nudged))
    assert found.ok and found.why.endswith("rounding changes, or 2.0% of the loss, which is always allowed")
    other = judge(NUMERIC, BASE, BASE, scaled(1.06), twins(scaled(1.04)))
    assert other.ok and "which is always allowed" not in other.why


def test_a_limit_so_wide_that_it_says_little_is_told() -> None:
    found = judge(NUMERIC, BASE, scaled(1.09), scaled(1.036), NO_TWINS)
    assert found.ok and found.weak and "; a weak test: 29% of the loss is allowed" in found.why
    flat = replace(BASE, losses=losses(2.0 + 0.0002 * np.arange(STEPS)))
    moved = replace(BASE, losses=losses(2.02 + 0.0002 * np.arange(STEPS)))
    stands = judge(NUMERIC, flat, flat, moved, NO_TWINS)
    assert stands.ok and stands.weak and "the loss changes by only 0.3% over these steps" in stands.why
    near = replace(BASE, losses=losses(2.0001 + 0.0002 * np.arange(STEPS)))
    for strong in (judge(NUMERIC, flat, flat, near, NO_TWINS), judge(NUMERIC, BASE, BASE, scaled(1.01), NO_TWINS)):
        assert strong.ok and not strong.weak and strong.why == "within the stated tolerance of 2.0%"
    assert not judge(EXACT, flat, flat, flat, NO_TWINS).weak


def test_a_twin_says_how_far_rounding_carries() -> None:
    trial = scaled(1.05)
    assert not judge(NUMERIC, BASE, BASE, trial, twins(scaled(1.01))).ok
    found = judge(NUMERIC, BASE, BASE, trial, twins(scaled(1.03)))
    assert found.ok and "2.5 times what nudging" in found.why
    assert found.allowed == pytest.approx(0.075, rel=0.1)
    failed = judge(NUMERIC, BASE, BASE, trial, twins(None))
    assert not failed.ok and "extra runs" in failed.why


@pytest.mark.parametrize(
    ("by", "made", "ok"),
    [
        (1.015, 0, True),  # within the stated tolerance
        (1.05, 1, True),
        (1.07, 3, True),  # two twins allow 5%
        (1.09, 4, False),
        (1.12, 2, False),  # more than twice what they allow
    ],
)
def test_more_twins_are_made_of_a_near_miss_only(by: float, made: int, ok: bool) -> None:
    spreads, seen = (1.02, 1.02, 1.03, 1.03), []

    def twin(spread: float) -> Callable[[], Evidence]:
        return lambda: (seen.append(spread), scaled(spread))[1]

    found = judge(NUMERIC, BASE, BASE, scaled(by), Twins([twin(spread) for spread in spreads], []))
    assert (found.ok, len(seen)) == (ok, made)


def test_each_size_of_a_nudge_takes_signs_of_its_own() -> None:
    nudged = []
    for size in (*NUDGES.values(), NUDGES["nudged twin"]):
        linear = torch.nn.Linear(64, 64)
        torch.nn.init.ones_(linear.weight)
        nudge(linear, size)
        nudged.append(linear.weight > 1)
        assert float((linear.weight - 1).abs().max().detach()) == pytest.approx(NUDGE, rel=1e-3)
    alike = [float((one == two).float().mean()) for one, two in itertools.combinations(nudged[:-1], 2)]
    assert all(0.4 < share < 0.6 for share in alike)
    assert bool((nudged[0] == nudged[-1]).all())


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gradient": 2.1}, "first gradient norm"),
        ({"norm": 1.1}, "weight update"),
        ({"turn": 1.5}, "direction of the first update"),
    ],
)
def test_first_gradients_and_updates_have_tolerances_of_their_own(changes: dict[str, float], named: str) -> None:
    trial = replace(BASE, updates=(update(0, **changes), update(3, 4.0)))
    found = judge(NUMERIC, BASE, BASE, trial, twins(BASE))
    assert not found.ok and named in found.why


def clipped(norm: float | None, after: float | None = 1.0) -> Evidence:
    """A run whose gradients had this norm before the script clipped them."""
    lines = (replace_line(update(0), gradient_norm=after, unclipped_norm=norm), update(3, 4.0))
    return replace(BASE, updates=lines)


@pytest.mark.parametrize(("norm", "ok"), [(7.0, True), (7.1, True), (7.35, False), (6.0, False)])
def test_gradients_are_compared_as_they_were_before_the_script_clipped_them(norm: float, ok: bool) -> None:
    """After it each has the norm that the script asks for."""
    found = judge(NUMERIC, clipped(7.0), clipped(7.0), clipped(norm), twins(clipped(7.0)))
    assert found.ok is ok and found.gradient_gap == pytest.approx(abs(norm - 7.0) / 7.0)
    assert ok or "first gradient norm" in found.why
    assert judge(EXACT, clipped(7.0), clipped(7.0), clipped(norm), NO_TWINS).ok is (norm == 7.0)
    assert judge(NUMERIC, clipped(7.0), clipped(7.0), clipped(norm), twins(clipped(6.5))).ok, "a nudge does as much"


def test_a_trial_that_no_longer_clips_never_passes() -> None:
    """Also where the first gradients are small enough that it would have changed nothing."""
    found = judge(NUMERIC, clipped(0.9, 0.9), clipped(0.9, 0.9), clipped(None, 0.9), NO_TWINS)
    assert not found.ok and "clips its gradients before the first update, and the trial does not" in found.why
    assert judge(NUMERIC, clipped(None), clipped(None), clipped(7.0), NO_TWINS).ok, "a baseline of an older hotlap"
    assert judge(NUMERIC, clipped(None, 0.9), clipped(0.9, 0.9), clipped(None, 0.9), NO_TWINS).ok, "now and then"
    wild = judge(NUMERIC, clipped(7.0), clipped(7.0), clipped(None, None), twins(clipped(7.0)))
    assert not wild.ok and "first gradient norm" in wild.why, "not finite, which says nothing of clipping"


def test_a_late_drift_is_seen_though_the_mean_is_near() -> None:
    drifted = BASE_LOSSES.copy()
    drifted[-8:] *= 1.2
    found = judge(replace_rule(NUMERIC, tolerance=0.05), BASE, BASE, replace(BASE, losses=losses(drifted)), twins(BASE))
    assert not found.ok


def test_other_batches_are_seen_though_the_loss_stands_still() -> None:
    """All losses lie within 1% of each other: only their ups and downs tell which batches they are of."""
    draw = np.random.default_rng(1)
    still = 2.3 * (1 + 0.008 * draw.standard_normal(STEPS))
    base = replace(BASE, losses=losses(still), batches=())
    same = replace(base, losses=losses(still * (1 + 0.001 * draw.standard_normal(STEPS))))
    moved = replace(base, losses=losses(np.roll(still, 1)))
    assert judge(NUMERIC, base, base, same, NO_TWINS).ok
    found = judge(NUMERIC, base, base, moved, twins(same))
    assert not found.ok and "from step to step" in found.why


def test_a_smooth_loss_has_no_pattern_to_miss() -> None:
    smooth = 2.3 - 1e-6 * np.arange(STEPS)
    rounded = smooth * (1 + 1e-3 * np.random.default_rng(2).standard_normal(STEPS))
    base = replace(BASE, losses=losses(smooth))
    assert judge(NUMERIC, base, base, replace(base, losses=losses(rounded)), NO_TWINS).ok


def test_the_worst_of_several_losses_counts() -> None:
    """A GAN whose discriminator's loss is small beside the generator's."""
    pair = replace(BASE, losses=tuple((10.0, 0.1) for _ in range(STEPS)))
    bent = replace(BASE, losses=tuple((10.0, 0.15) for _ in range(STEPS)))
    assert gaps(pair, bent).loss == pytest.approx(0.5)
    assert not judge(NUMERIC, pair, pair, bent, twins(pair)).ok


def test_several_optimizers_are_told_apart() -> None:
    two = replace(BASE, updates=(update(0, optimizer=0), update(0, 5.0, optimizer=1)))
    bent = replace(BASE, updates=(update(0, optimizer=0), update(0, 9.0, optimizer=1)))
    assert gaps(two, bent).update == pytest.approx(0.8)
    assert judge(EXACT, two, two, two, NO_TWINS).ok


# data


def test_samples_are_told_apart() -> None:
    assert samples(BASE, BASE) == "same"
    assert samples(BASE, replace(BASE, batches=())) == "none"
    assert samples(BASE, replace(BASE, batches=batches(images="x"))) == "labels"
    assert samples(BASE, replace(BASE, batches=batches(labels="x"))) == "other"
    floats = replace(BASE, batches=(batch(0, ("float", ["a", "b"])),))
    assert samples(floats, replace(BASE, batches=(batch(0, ("float", ["a", "c"])),))) == "floats"
    assert samples(floats, replace(BASE, batches=(batch(0, ("float", ["a"])),))) == "other"
    assert samples(floats, replace(BASE, batches=(batch(0, ("int", ["a", "b"])),))) == "other"
    assert samples(floats, replace(BASE, batches=(batch(0, ("float", ["a"]), ("float", ["b"])),))) == "other"


@pytest.mark.parametrize("rule", [EXACT, NUMERIC, REDRAWS])
def test_other_labels_never_pass(rule: Rule) -> None:
    trial = replace(scaled(1.001), batches=batches(labels="x"))
    found = judge(rule, BASE, BASE, trial, twins(noisy(1.0, 1), noisy(1.0, 2)))
    assert not found.ok and "other samples" in found.why


def test_only_levers_that_redraw_may_change_the_floats_of_the_data() -> None:
    trial = replace(scaled(1.001), batches=batches(images="x"))
    found = judge(NUMERIC, BASE, BASE, trial, NO_TWINS)
    assert not found.ok and "the lever changed the data" in found.why
    found = judge(REDRAWS, BASE, BASE, trial, twins(redrawn=scaled(1.002)))
    assert found.ok and found.level == "redraw" and found.samples is not None and "random transforms" in found.samples


def test_a_command_whose_data_differ_by_itself_allows_it_to_levers() -> None:
    again = replace(noisy(1e-3, 3), batches=batches(images="y"))
    trial = replace(noisy(1e-3, 4), batches=batches(images="x"))
    assert judge(EXACT, BASE, again, trial, NO_TWINS).ok


REDRAWN = replace(scaled(1.2), batches=batches(images="x"))


def test_redraws_fall_back_to_a_reseeded_twin() -> None:
    assert not judge(REDRAWS, BASE, BASE, REDRAWN, twins(redrawn=scaled(1.02))).ok
    assert judge(REDRAWS, BASE, BASE, REDRAWN, twins(redrawn=scaled(1.1))).ok
    assert not judge(REDRAWS, BASE, BASE, REDRAWN, twins(redrawn=None)).ok


def test_the_reseeded_twin_begins_alike_so_its_first_gradient_says_nothing() -> None:
    later = replace(BASE, updates=(update(0), update(3, 4.0, gradient=2.2)), losses=scaled(1.01).losses)
    trial = replace(BASE, updates=(update(0, gradient=2.15), update(3, 4.0)), batches=batches(images="x"))
    assert judge(REDRAWS, BASE, BASE, trial, twins(redrawn=later)).ok
    far = replace(trial, updates=(update(0, gradient=3.0), update(3, 4.0)))
    assert not judge(REDRAWS, BASE, BASE, far, twins(redrawn=later)).ok


def pinned(one: Evidence, two: Evidence) -> dict[str, Callable[[], tuple[Evidence, Evidence]]]:
    return {"pinned": lambda: (one, two)}


def test_pinned_draws_decide_where_they_can_be_had() -> None:
    wide = scaled(1.5)
    same = judge(REDRAWS, BASE, BASE, REDRAWN, twins(redrawn=wide, **pinned(BASE, BASE)))
    assert same.ok and same.level == "redraw" and "bit for bit" in same.why
    other = judge(REDRAWS, BASE, BASE, REDRAWN, twins(redrawn=wide, **pinned(BASE, scaled(1.001))))
    assert not other.ok and "same random draws" in other.why, "a redrawn twin would have let this pass"
    nan = replace(BASE, losses=(*BASE.losses[:-1], (NAN,)))
    assert not judge(REDRAWS, BASE, BASE, REDRAWN, twins(redrawn=wide, **pinned(BASE, nan))).ok


def test_draws_that_differ_after_the_first_samples_are_pinned_beside_a_numeric_lever_too() -> None:
    rule = replace_rule(REDRAWS, numeric=True, tolerance=0.005)
    late = replace(noisy(1e-7, 3), losses=(*noisy(1e-7, 3).losses[:10], *scaled(1.1).losses[10:]))
    found = judge(rule, BASE, noisy(1e-7, 1), late, twins(nudged=BASE, **pinned(BASE, scaled(1.001))))
    assert (found.ok, found.level) == (True, "redraw")


def test_pinned_draws_with_a_numeric_lever_keep_its_tolerance() -> None:
    rule = Rule(numeric=True, tolerance=0.02, redraws=True)
    assert judge(rule, BASE, BASE, REDRAWN, twins(**pinned(BASE, scaled(1.01)))).ok
    assert not judge(rule, BASE, BASE, REDRAWN, twins(nudged=BASE, **pinned(BASE, scaled(1.05)))).ok
    assert judge(rule, BASE, BASE, REDRAWN, twins(nudged=scaled(1.03), **pinned(BASE, scaled(1.05)))).ok


def test_draws_that_could_not_be_pinned_fall_back() -> None:
    unpinned = pinned(BASE, REDRAWN)
    assert judge(REDRAWS, BASE, BASE, REDRAWN, twins(redrawn=scaled(1.1), **unpinned)).ok
    assert not judge(REDRAWS, BASE, BASE, REDRAWN, twins(redrawn=scaled(1.01), **unpinned)).ok
    none = twins(redrawn=scaled(1.01), pinned=lambda: None)
    assert not judge(REDRAWS, BASE, BASE, REDRAWN, none).ok


# the record and the files


@given(
    st.lists(st.tuples(st.floats(allow_nan=True, allow_infinity=True)), min_size=0, max_size=12),
    st.lists(st.tuples(st.floats(allow_nan=True, allow_infinity=True)), min_size=0, max_size=12),
)
def test_any_losses_give_a_verdict_that_can_be_written(one: list[tuple[float]], two: list[tuple[float]]) -> None:
    import msgspec

    a, b = Evidence(tuple(one)), Evidence(tuple(two))
    with np.errstate(over="ignore", invalid="ignore"):
        found = judge(NUMERIC, a, a, b, twins(a, a))
    assert found.why
    decoded = msgspec.json.decode(msgspec.json.encode(found), type=type(found))
    assert decoded == found, "every number of it is finite or None"
    if any(math.isnan(x) for (x,) in two[: len(one)]) and not any(math.isnan(x) for (x,) in one):
        assert not found.ok


def test_read_evidence(tmp_path: Path) -> None:
    rank = tmp_path / "rank-0"
    rank.mkdir()
    phases = '{"data":0,"h2d":0,"forward":1,"backward":1,"optimizer":1,"other":0}'

    def line(number: int, rest: str) -> str:
        return f'{{"step":{number},"time":1,"wall_ms":1,"phases":{phases},{rest}}}\n'

    steps = [
        line(0, '"loss":1.5'), line(1, '"loss":3.0,"losses":[1.0,2.0]'), line(2, '"loss":null,"nonfinite":true'),
        line(3, '"loss":null'), line(4, '"loss":9.0,"kind":"inference"'), '{"step":5,"time":',
    ]  # fmt: skip
    (rank / "steps.jsonl").write_text("".join(steps))
    probe = [
        {"what": "batch", "batch": 0, "leaves": [{"kind": "int", "rows": ["a"]}]},
        {"what": "forward", "draws": True},
        {"what": "update", "step": 0, "gradient_norm": 1.0, "update_norm": None, "update": [1.0, None]},
        {"what": "something of a later version", "extra": 1},
    ]
    (rank / "probe.jsonl").write_text("".join(json.dumps(row) + "\n" for row in probe) + '{"what":"upd')
    found = read_evidence(tmp_path)
    assert found.losses[:2] == ((1.5,), (1.0, 2.0)) and found.losses[3] == (math.inf,) and len(found.losses) == 4
    assert math.isnan(found.losses[2][0])
    assert found.draws is True and len(found.batches) == 1 and found.updates[0].update == (1.0, None)
    assert read_evidence(tmp_path / "absent") == Evidence(())


def from_step(step: int, by: float = 1.01) -> Evidence:
    """The baseline, whose losses are others from some step on."""
    return replace(BASE, losses=(*BASE.losses[:step], *((by * x,) for (x,) in BASE.losses[step:])))


def test_draws_that_differ_only_after_the_samples_that_were_looked_at_are_pinned_too() -> None:
    """Of more workers the first batches come from the same ones (DINO: 12 for 10): it was refused as "not equal"."""
    late = from_step(12)
    found = judge(REDRAWS, BASE, BASE, late, twins(pinned=lambda: (BASE, BASE)))
    assert (found.ok, found.level) == (True, "redraw") and "same random draws" in found.why
    wrong = judge(REDRAWS, BASE, BASE, late, twins(pinned=lambda: (BASE, late)))
    assert not wrong.ok and wrong.level == "redraw"
    assert not judge(REDRAWS, BASE, BASE, late, Twins([], [])).ok, "where draws can't be pinned it is not equal"
    assert not judge(REDRAWS, BASE, BASE, from_step(2), NO_TWINS).ok, "a difference at once is none of draws"
    assert not judge(EXACT, BASE, BASE, late, NO_TWINS).ok


def test_noise_is_what_any_two_bare_runs_differ() -> None:
    """With two runs that happen to be near each other an honest lever was refused, beside two more that were not."""
    near, far, trial = scaled(1.0001), scaled(1.002), scaled(1.005)
    assert not judge(EXACT, BASE, near, trial, NO_TWINS).ok
    assert judge(EXACT, BASE, near, trial, NO_TWINS, [far]).ok
    assert not judge(EXACT, BASE, near, scaled(1.05), NO_TWINS, [far]).ok
