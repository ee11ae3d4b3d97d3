"""What the screen says is proved, not yet proved, or no gain; of objectives, and of commands made to fit."""

import io
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from hotlap.records.diagnosis import Finding, Place
from hotlap.records.run import Environment, LeftOut, Lever, Phases
from hotlap.records.tune import (
    Dropped,
    Fitted,
    Interval,
    Kept,
    Open,
    Parity,
    Proof,
    Reference,
    Trial,
    Tune,
    Worth,
)
from hotlap.report.tune_screen import tune_headline, tune_screen
from made_runs import diagnosis_of

PARITY = Parity(ok=True, level="bitwise", why="equal")
DIAGNOSIS = diagnosis_of(bound="compute", step_ms=100.0, phases=Phases(forward=100.0))
TUNE = Tune(
    command=("python", "t.py"), speedup=2.0, interval=Interval(low=1.9, high=2.1), starts=2, turns=16,
    before_ms=100.0, after_ms=50.0, gain=True, dropped=(), parity=PARITY, baseline=DIAGNOSIS, tuned=DIAGNOSIS,
    proofs=(
        Proof(levers=(Lever(name="tf32"),), ratio=1.5, proved=True, at_s=100.0),
        Proof(levers=(Lever(name="x"),), ratio=1.4, proved=True, at_s=150.0),
        Proof(levers=(Lever(name="tf32"),), ratio=2.0, proved=True, at_s=190.0),
    ),
    kept=(Kept(lever="tf32", settings={}, risk="numeric", meaning="m", predicted=3.0),),
    environment=Environment(hotlap="0", python="3", os="", cpu="x", cores=2, memory_gib=8.0), recipe="recipe.toml",
)  # fmt: skip
FITTED = (Fitted(lever="checkpoint-blocks", settings={"every": 2}, risk="exact", meaning="computed again"),)
REFERENCE = Reference(
    parts=4, levers=(Lever(name="checkpoint-blocks"),), time_ratio=1.27, interval=Interval(low=1.2, high=1.34),
    turns=16, before_ms=20.0, after_ms=25.4, memory_before_bytes=3.0 * 2**30,
    memory_after_bytes=2.0 * 2**30, parity=PARITY,
)  # fmt: skip


def text(**changes: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(tune_screen(msgspec.structs.replace(TUNE, **changes), Path("out")))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def headline(**changes: Any) -> str:
    return tune_headline(msgspec.structs.replace(TUNE, **changes))


def test_headlines_of_objectives() -> None:
    evidence = "95% interval 1.90–2.10; 2 fresh starts of each side, 16 turns each"
    assert headline() == f"2.00× faster, proved ({evidence}): 100 ms → 50.0 ms a step"
    less = headline(objective="memory", memory_before_bytes=3 * 2**30, memory_after_bytes=2.0 * 2**30, speedup=0.8)
    assert less.startswith("1.50× less memory, proved: 3 GiB → 2 GiB at the peak; a step takes 1.25× of the time")
    cheap = headline(objective="cost", price=2.5, cost_before=12.0, cost_after=6.0)
    assert cheap.startswith("2.00× cheaper, proved") and "$12 → $6 a million rows at $2.5 an hour" in cheap


def test_steps_of_other_sizes_are_told_by_the_row() -> None:
    """Of a lever that makes them so; sides that were at other places of the data have other rows too."""
    semantic = {"kept": tuple(msgspec.structs.replace(one, risk="semantic") for one in TUNE.kept)}
    use = (Lever(name="tf32"),)
    runs = tuple(
        Trial(id=at, purpose=what, levers=levers, folder="", outcome="measured", step_ms=100.0, rows=rows)
        for at, (what, levers, rows) in enumerate([("baseline", (), 8.0), ("prove", use, 32.0), ("bare", (), 8.0)])
    )
    held = "50.0 ms for the same rows; steps now have 4 times as many rows"
    assert headline(trials=runs, **semantic).endswith(held)
    assert headline(trials=runs[:1] + runs[2:], **semantic).endswith("50.0 ms a step")
    assert headline(trials=runs).endswith("50.0 ms a step")


def test_a_risk_that_did_not_show_is_said_so() -> None:
    said = "what these levers may change stayed the same"
    assert said in text() and said not in text(parity=msgspec.structs.replace(PARITY, level="numeric"))
    assert said not in text(kept=tuple(msgspec.structs.replace(one, risk="exact") for one in TUNE.kept))


def test_of_what_the_table_is_where_the_turns_took_other_times() -> None:
    """`297 ms → 3.23 ms a step` stood above a table of 30.7 and 1.98 ms."""
    tuned = msgspec.structs.replace(DIAGNOSIS, step_ms=50.0)
    assert "before the turns" not in text(tuned=tuned)
    told = text(before_ms=297.0, after_ms=148.5, tuned=tuned)
    assert "measured in one run each, before the turns: a typical step took 100 ms → 50.0 ms" in told
    assert "before the turns" not in text(before_ms=297.0, after_ms=148.5, how="one after another")


def test_a_gain_that_is_not_proved_yet_is_not_called_no_gain() -> None:
    uses = (Lever(name="tf32"), Lever(name="compile"))
    found = Open(levers=uses, ratio=1.46, interval=Interval(low=1.4, high=1.52), why="the budget ended")
    changes: dict[str, Any] = {
        "gain": False, "kept": (), "tuned": None, "complete": False, "recipe": None, "why_incomplete": "2 starts",
        "speedup": None, "interval": None, "unproved": found, "proofs": (),
    }  # fmt: skip
    said = "measured, not yet proved: 1.46× faster (95% interval 1.40–1.52) with tf32 + compile; 100 ms a step"
    assert headline(**changes) == said
    shown = text(**changes)
    assert "no gain" not in shown and "limit" not in shown and "the budget ended\n" in shown
    assert "hotlap tune --resume out python t.py" in shown and "not finished, 2 starts" in shown
    assert "less memory, at 1.46× the speed" in headline(**changes, objective="memory")


def test_what_may_be_no_gain_is_not_called_faster() -> None:
    """Seen on a public script: 1.06× faster (95% interval 0.97–1.16)."""
    found = Open(levers=(Lever(name="compile"),), ratio=1.06, interval=Interval(low=0.97, high=1.16))
    nothing = {"kept": (), "tuned": None, "recipe": None, "speedup": None, "interval": None, "proofs": ()}
    shown = headline(gain=False, unproved=found, **nothing)
    assert shown.startswith("measured, not yet proved: 1.06× (95% interval 0.97–1.16: it may be none) with compile")


def test_what_was_measured_on_top_of_what_is_proved() -> None:
    uses = (Lever(name="tf32"), Lever(name="compile"))
    found = Open(levers=uses, ratio=1.3, interval=Interval(low=1.2, high=1.4))
    assert "measured on top, not proved yet: 1.30× faster (95% interval 1.20–1.40) with compile\n" in text(
        unproved=found
    )
    tried = Proof(levers=uses, ratio=1.3, proved=False)
    shown = text(unproved=found, proofs=(*TUNE.proofs, tried))
    assert "1.30× faster over the bare command (95% interval 1.20–1.40) with tf32 + compile\n" in shown


def test_proofs_over_time() -> None:
    assert "\nproved 1.50× after 01:40, 2.00× after 03:10\n" in text()
    assert "proved 1.50×" not in text(proofs=())


def test_processes_one_after_another_are_said() -> None:
    shown = text(how="one after another", turns=0)
    assert "2 fresh starts of each side, one after another)" in shown
    assert "runs one after another, as both could not run at once" in shown


def test_a_command_made_to_fit() -> None:
    alone = text(fitted=FITTED, gain=False, kept=(), speedup=None, interval=None, tuned=None)
    assert "fits in memory now, where the command alone does not: 100 ms a step" in alone
    assert "checkpoint-blocks every=2" in alone and "does not run without them" in alone
    assert "does not run without them: no DataLoader feeds" in text(fitted=FITTED, no_reference="no DataLoader feeds")
    assert "hotlap run --recipe" in alone, "it is worth using without a gain"
    assert "and 2.00× faster" in headline(fitted=FITTED)


def test_what_it_costs_to_fit() -> None:
    shown = " ".join(text(fitted=FITTED, reference=REFERENCE).split())
    assert "checkpoint-blocks against the command alone, both with 1/4 of the batch" in shown
    assert "time a sample takes 1.27× of the time (95% interval 1.20–1.34, 16 turns each) · 20.0 ms → 25.4 ms" in shown
    assert "peak 3 GiB → 2 GiB parity holds, bitwise" in shown and "were not measured" not in shown
    wide = msgspec.structs.replace(REFERENCE, interval=Interval(low=0.9, high=1.6), memory_after_bytes=None)
    shown = text(fitted=FITTED, reference=wide)
    assert "no difference shown: a sample takes 1.27× of the time" in shown and "peak" not in shown
    assert "1/4 of the batch" not in text(reference=REFERENCE), "nothing is needed to fit any more"


def test_what_was_taken_over_is_said() -> None:
    shown = text(reused=("the set that the tune of 2026-11-21 kept was tried first",))
    assert "reused" in shown and "tune of 2026-11-21" in shown


def test_levers_that_trials_were_made_with_come_before_those_that_were_ruled_out() -> None:
    """Of so many that only the first are shown."""
    ruled_out = [Dropped(lever=f"a{number:02}", why="ruled out") for number in range(30)]
    slower, refused = (
        Dropped(lever="slower", why="slower", ratio=0.9, interval=Interval(low=0.85, high=0.95)),
        Dropped(lever="refused", why="had nothing to do"),
    )
    left = LeftOut(lever=Lever(name="refused"), why="had nothing to do")
    trial = Trial(id=2, purpose="try", levers=(), folder="trials/002", outcome="measured", left_out=(left,))
    open_ = Dropped(lever="open", why="the budget ended before it was tried")
    said = text(dropped=(*ruled_out, open_, refused, slower), trials=(trial,))
    assert said.index("slower") < said.index("refused") < said.index("open ") < said.index("a00")
    assert "a29" not in said and "0.90× (0.85–0.95)" in said


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


def test_a_ratio_that_is_only_a_cap_is_no_prediction() -> None:
    kept = msgspec.structs.replace(TUNE.kept[0], predicted=1 / (1 - 0.95))
    assert "20.00×" not in text(kept=(kept,))
    assert "≤ 19.00×" in text(kept=(msgspec.structs.replace(kept, predicted=19.0),))


def test_worth_is_shown_with_what_it_was_measured_beside() -> None:
    (one,) = TUNE.kept
    assert "worth -: the only lever, so the whole gain is its own\n" in text()
    worth = Worth(ratio=1.27, interval=Interval(low=1.21, high=1.34), beside=("compile",), by="switching")
    two = (msgspec.structs.replace(one, worth=worth), msgspec.structs.replace(one, lever="compile"))
    said = text(kept=two)
    assert "1.27× (1.21–1.34) switching" in " ".join(said.split())
    assert "worth -: compile was not measured\n" in said and "only\n" not in said
    assert "worth -: compile not measured before the budget ended\n" in text(kept=two, complete=False)
    alone = msgspec.structs.replace(worth, beside=())
    said = text(kept=(msgspec.structs.replace(one, worth=alone), two[1]))
    assert "tf32 was measured alone" in said


def test_a_machine_that_changed_its_pace_is_said() -> None:
    """Seen beside other work, which came when a set was proved."""
    assert "a noisy machine: two runs of the bare command differ by 22%" in text(noise=0.2)
    paced = msgspec.structs.replace(TUNE.proofs[-1], paces=(53.1, 297.0))
    shown = text(proofs=(*TUNE.proofs[:-1], paced), noise=0.2)
    assert "turns took 53.1 ms a step at first, 297 ms during the comparison" in shown
    assert "a noisy machine" not in shown


def test_where_no_lever_helps_the_next_command_says_what_else_to_try() -> None:
    nothing = {
        "kept": (),
        "tuned": None,
        "recipe": None,
        "speedup": None,
        "interval": None,
        "proofs": (),
        "gain": False,
    }
    assert text(**nothing).endswith("next: what else to try\nhotlap advise out\n")


def test_a_cause_with_which_the_verdict_begins_stands_beside_the_bound() -> None:
    """8x was measured where threads waited for a core, and the screen said "bound unknown"."""
    waits = Finding(id="cpu-crowded", bound="unknown", share=0.56, title="threads wait for a core", named=True)
    shown = text(baseline=msgspec.structs.replace(DIAGNOSIS, bound="unknown", findings=(waits,)))
    assert "before bound unknown, threads wait for a core · after compute-bound" in shown
    mode = Finding(
        id="debug", bound="compute", share=0.0, title="anomaly detection is on", named=True
    )  # at unknown cost
    shown = text(baseline=msgspec.structs.replace(DIAGNOSIS, bound="compute", findings=(mode,)))
    assert "before compute-bound, anomaly detection is on" in shown
