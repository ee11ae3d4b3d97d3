"""What the screen says of objectives, of commands made to fit, of groups, and of what was not measured anew."""

import io
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from hotlap.records.diagnosis import Diagnosis, Place, Spread
from hotlap.records.run import Environment, LeftOut, Lever, Phases
from hotlap.records.tune import Dropped, Fitted, Interval, Kept, OutputError, Parity, Reference, Trial, Tune
from hotlap.report.tune_screen import tune_headline, tune_screen

PARITY = Parity(ok=True, level="bitwise", why="equal")
DIAGNOSIS = Diagnosis(
    mode="train", bound="compute", step_ms=100.0, spread=Spread(p10=1, p50=1, p90=1), phases=Phases(forward=100.0)
)
TUNE = Tune(
    command=("python", "t.py"), speedup=2.0, interval=Interval(low=1.9, high=2.1), pairs=2, before_ms=100.0,
    after_ms=50.0, gain=True, dropped=(), parity=PARITY, baseline=DIAGNOSIS, tuned=DIAGNOSIS,
    kept=(Kept(lever="tf32", settings={}, risk="numeric", meaning="m", parity=PARITY, predicted=3.0, measured=1.5),),
    environment=Environment(hotlap="0", python="3", os="", cpu="x", cores=2, memory_gib=8.0), recipe="recipe.toml",
)  # fmt: skip
FITTED = (Fitted(lever="checkpoint-blocks", settings={"every": 2}, risk="exact", meaning="computed again"),)
REFERENCE = Reference(
    parts=4, levers=(Lever(name="checkpoint-blocks"),), time_ratio=1.27, interval=Interval(low=1.2, high=1.34), pairs=3,
    before_ms=20.0, after_ms=25.4, memory_before_bytes=3.0 * 2**30, memory_after_bytes=2.0 * 2**30, parity=PARITY,
)  # fmt: skip


def text(**changes: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(tune_screen(msgspec.structs.replace(TUNE, **changes), Path("out")))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def headline(**changes: Any) -> str:
    return tune_headline(msgspec.structs.replace(TUNE, **changes))


def test_headlines_of_objectives() -> None:
    assert headline() == "2.00× faster (95% interval 1.90–2.10, 2 ABBA pairs): 100 ms → 50.0 ms a step"
    late = headline(kept=(msgspec.structs.replace(TUNE.kept[0], lever="sample-cache", late=True),))
    assert late.endswith("100 ms → 50.0 ms a step, from the second epoch on")
    less = headline(objective="memory", memory_before_bytes=3 * 2**30, memory_after_bytes=2.0 * 2**30, speedup=0.8)
    assert less.startswith("1.50× less memory: 3 GiB → 2 GiB at the peak; a step takes 1.25× of the time")
    cheap = headline(objective="cost", price=2.5, cost_before=12.0, cost_after=6.0)
    assert cheap.startswith("2.00× cheaper") and "$12 → $6 a million rows at $2.5 an hour" in cheap


def test_steps_of_other_sizes_are_told_by_the_row() -> None:
    use = (Lever(name="batch-size"),)
    runs = tuple(
        Trial(id=at, purpose=what, levers=levers, folder="", outcome="measured", step_ms=100.0, rows=rows)
        for at, (what, levers, rows) in enumerate([("baseline", (), 8.0), ("confirm", use, 32.0), ("confirm", (), 8.0)])
    )
    assert headline(trials=runs).endswith("50.0 ms for the rows of a step, of which steps hold 4 times as many now")
    assert headline(trials=runs[:1] + runs[2:]).endswith("50.0 ms a step")


def test_a_gain_that_is_not_proved_yet() -> None:
    changes: dict[str, Any] = {
        "gain": False, "kept": (), "tuned": None, "complete": False, "recipe": None, "why_incomplete": "2 pairs",
        "speedup": 2.16, "interval": Interval(low=0.18, high=25.55), "unproved": (1.78, 2.62),
    }  # fmt: skip
    said = "no gain proved yet: 1.78× and 2.62× in 2 ABBA pairs, too few for an interval above 1; 100 ms a step"
    assert headline(**changes) == said
    runs = tuple(
        Trial(id=at, purpose="baseline", levers=(), folder="", outcome="measured", step_ms=ms)
        for at, ms in enumerate((80.0, 100.0))
    )
    assert headline(**changes, trials=runs).endswith("; 90.0 ms a step"), "what ratios of trials are of"
    assert "hotlap tune --resume out" in text(**changes) and "not finished, 2 pairs" in text(**changes)


def test_a_command_made_to_fit() -> None:
    alone = text(fitted=FITTED, gain=False, kept=(), speedup=None, interval=None, tuned=None)
    assert "fits in memory now, where the command alone does not: 100 ms a step" in alone
    assert "checkpoint-blocks every=2" in alone and "does not run without them" in alone
    assert "does not run without them: no DataLoader feeds" in text(fitted=FITTED, no_reference="no DataLoader feeds")
    assert "hotlap run --recipe" in alone, "it is worth using without a gain"
    assert "and 2.00× faster" in headline(fitted=FITTED)


def test_what_it_costs_to_fit() -> None:
    shown = " ".join(text(fitted=FITTED, reference=REFERENCE).split())
    assert "checkpoint-blocks beside the command alone, both with 1/4 of the batch" in shown
    assert "time a sample takes 1.27× of the time (95% interval 1.20–1.34, 3 ABBA pairs) · 20.0 ms → 25.4 ms" in shown
    assert "peak 3 GiB → 2 GiB parity holds, bitwise" in shown and "were not measured" not in shown
    wide = msgspec.structs.replace(REFERENCE, interval=Interval(low=0.9, high=1.6), memory_after_bytes=None)
    shown = text(fitted=FITTED, reference=wide)
    assert "no difference shown: a sample takes 1.27× of the time" in shown and "peak" not in shown
    assert "1/4 of the batch" not in text(reference=REFERENCE), "nothing is needed to fit any more"


def test_predictions_say_whose_they_are() -> None:
    most, replayed = (msgspec.structs.replace(TUNE.kept[0], predicted_by=by) for by in ("share", "replay"))
    assert "≤ 3.00×" in text(kept=(most,))
    assert "3.00×" in text(kept=(replayed,)) and "≤" not in text(kept=(replayed,))


def test_what_was_taken_over_and_the_compilers_cache_are_said() -> None:
    shown = text(reused=("the set that the tune of 2026-11-21 kept was tried first",), compile_cache="cold")
    assert "reused" in shown and "tune of 2026-11-21" in shown and "compile cache cold at the start" in shown


def test_levers_that_change_outputs_say_by_how_much() -> None:
    error = OutputError(relative=0.0123, largest=0.0156, forwards=4, layers=12)
    kept = Kept(
        lever="quantize-linear", settings={"how": "int8-weight"}, risk="semantic", meaning="m", parity=PARITY,
        measured=1.3, output_error=error,
    )  # fmt: skip
    shown = text(kept=(kept,))
    assert "quantize-linear changes outputs by 1.23% (relative, mean of 4 forwards; largest 1.56%)" in shown
    assert "changes outputs" not in text()


def test_levers_that_trials_were_made_with_come_before_those_that_were_ruled_out() -> None:
    """Of so many that only the first are shown."""
    ruled_out = [Dropped(lever=f"a{number:02}", why="ruled out") for number in range(30)]
    slower, refused = (
        Dropped(lever="slower", why="slower", ratio=0.9),
        Dropped(lever="refused", why="had nothing to do"),
    )
    left = LeftOut(lever=Lever(name="refused"), why="had nothing to do")
    trial = Trial(id=2, purpose="try", levers=(), folder="trials/002", outcome="measured", left_out=(left,))
    said = text(dropped=(*ruled_out, refused, slower), trials=(trial,))
    assert said.index("slower") < said.index("refused") < said.index("a00")
    assert "a29" not in said


def test_of_a_trial_that_failed_the_line_and_the_output_are_named() -> None:
    where = Place(file="/w/vae.py", line=54, function="forward")
    crashed = Trial(id=6, purpose="try", levers=(), folder="trials/006", outcome="crashed", where=where)
    hung, refused, slow = (
        Trial(id=at, purpose="try", levers=(), folder=f"trials/00{at}", outcome=outcome)  # type: ignore[arg-type]
        for at, outcome in ((7, "timeout"), (8, "refused"), (9, "measured"))
    )
    ids = {"a": 6, "b": 7, "c": 8, "d": 9, "e": 5}
    dropped = tuple(Dropped(lever=name, why=f"why {name}", trial=id) for name, id in ids.items())
    said = text(dropped=dropped, trials=(crashed, hung, refused, slow))
    assert "why a (at /w/vae.py:54 in forward; see trials/006/output.txt)" in said
    assert "why b (see trials/007/output.txt)" in said and said.count("output.txt") == 2


def runs(purpose: str, *step_ms: float, levers: tuple[Lever, ...] = ()) -> list[Trial]:
    return [
        Trial(id=0, purpose=purpose, levers=levers, folder="x", outcome="measured", step_ms=each) for each in step_ms
    ]


def test_a_machine_that_drifted_is_told_where_that_is_more_than_noise() -> None:
    with_levers = runs("confirm", 50.0, levers=(Lever(name="tf32"),))
    said = text(trials=(*runs("baseline", 530.7, 519.3), *runs("confirm", 89.0, 76.7, 72.9), *with_levers))
    assert (
        "the machine drifted: the bare command took 525 ms a step at first, 79.2 ms in the pairs, which count\n" in said
    )
    assert "drifted" not in text(trials=(*runs("baseline", 43.1, 43.9), *runs("confirm", 41.2, 41.0, 42.3)))
    assert "drifted" not in text(trials=(*runs("baseline", 60.0, 90.0), *runs("confirm", 60.0, 62.0)))
    assert "drifted" not in text(trials=(*runs("baseline", 530.7), *with_levers))


def test_a_ratio_that_is_only_a_cap_is_no_prediction() -> None:
    kept = msgspec.structs.replace(TUNE.kept[0], predicted=1 / (1 - 0.95), predicted_by="share")
    assert "20.00×" not in text(kept=(kept,))
    assert "≤ 19.00×" in text(kept=(msgspec.structs.replace(kept, predicted=19.0),))
    assert "20.00×" in text(kept=(msgspec.structs.replace(kept, predicted_by="replay"),))


def test_a_missing_leave_one_out_is_explained() -> None:
    (one,) = TUNE.kept
    assert "leave-one-out -: tf32 came in last and was measured alone, which is the same\n" in text()
    others = tuple(msgspec.structs.replace(one, lever=name) for name in ("compile", "gc-pauses"))
    said = text(kept=(*others, one))
    assert "leave-one-out -: tf32 came in last and was measured beside all others, which is the same\n" in said
    assert "leave-one-out -: not measured of compile, gc-pauses\n" in said
    assert "leave-one-out -" not in text(kept=(msgspec.structs.replace(one, leave_one_out=1.4),))
