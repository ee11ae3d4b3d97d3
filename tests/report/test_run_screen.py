"""Screens on hand-made records: what is shown is what the records hold, on any terminal, whatever the names."""

import io
import math
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType

from hotlap.records.diagnosis import COMPARE, NOT_STEADY, Diagnosis, Finding, Place
from hotlap.records.durations import ms
from hotlap.records.run import Lever, Phases, Problem, Run
from hotlap.records.sizes import size_text
from hotlap.records.tune import Dropped, Interval, Parity, Trial, Tune
from hotlap.records.utilisation import Utilisation
from hotlap.report.console import (
    LONGEST_TEXT,
    CommandLine,
    bar,
    between,
    clean,
    minutes,
    percent,
    plain,
    ratio,
    stderr_console,
)
from hotlap.report.progress import Progress
from hotlap.report.rates import money_parts
from hotlap.report.run_screen import headline, run_screen
from hotlap.report.tune_screen import parity_parts, tune_screen
from report import pages

HOSTILE = "[red]a\x1b[31m\x07\u202eb\rc\nd[/red]:boom:"
TAMED = "[red]a[31mb c d[/red]:boom:"
FOLDER = Path("runs/one")
ENVIRONMENT = msgspec.structs.replace(pages.ENVIRONMENT, gpus=pages.ENVIRONMENT.gpus * 2, variables={}, git_dirty=True)
RUN = msgspec.structs.replace(pages.RUN, environment=ENVIRONMENT, wall_s=None, levers=(), recipe=None)
COMMAND = RUN.command
LOADER = msgspec.structs.replace(
    pages.FINDINGS[0],
    id="loader-in-process",
    title="The loader works in the training process",
    why="The device waits.",
    instead="Use worker processes.",
    levers=("loader-workers", "pin-memory"),
)
BEFORE = msgspec.structs.replace(
    pages.DIAGNOSIS,
    phases=msgspec.structs.replace(pages.DIAGNOSIS.phases, other=None),
    gpu_ms=None,
    gpu_phases=None,
    findings=(LOADER,),
    steps=71,
    steady_steps=60,
    device="cpu",
    device_name=None,
    unknown=(),
    memory=None,
    next="hotlap tune python train.py",
)
AFTER = msgspec.structs.replace(
    BEFORE, bound="compute", step_ms=93.2, phases=Phases(data=1.11, forward=24.4, backward=61.7), findings=()
)
PARITY = msgspec.structs.replace(pages.PARITY, why="rounding changes", samples=None)
TUNE = msgspec.structs.replace(
    pages.TUNE,
    kept=pages.TUNE.kept[:1],
    dropped=(
        Dropped(lever="channels-last", why="no convolution was seen"),
        Dropped(lever="compile", why="parity failed at step 7", ratio=1.43, interval=Interval(low=1.4, high=1.46)),
    ),
    parity=PARITY,
    baseline=BEFORE,
    tuned=AFTER,
    seed=1234,
    trials=(Trial(id=1, purpose="baseline", levers=(), folder="t1", outcome="measured"),) * 23,
    proofs=(),
    environment=ENVIRONMENT,
    complete=True,
    why_incomplete="",
)
NO_GAIN = msgspec.structs.replace(
    TUNE, gain=False, speedup=1.004, interval=Interval(low=0.98, high=1.03), kept=(), tuned=None, recipe=None
)
UNFINISHED = msgspec.structs.replace(
    NO_GAIN,
    speedup=None,
    interval=None,
    starts=0,
    turns=0,
    complete=False,
    why_incomplete="the budget of 10:00 ran out",
)


@pytest.fixture(autouse=True)
def ordinary_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Screens depend on these variables; the machine that runs the tests must not."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


class Terminal(io.StringIO):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(screen: RenderableType, width: int = 80) -> str:
    """The screen as a pipe gets it."""
    console = Console(file=io.StringIO(), width=width)
    console.print(screen)
    return console.file.getvalue()


def run_text(diagnosis: Diagnosis | None = BEFORE, width: int = 80, run: Run = RUN, **more) -> str:
    return shown(run_screen(run, diagnosis, more.pop("problems", ()), FOLDER, **more), width)


def tune_text(tune: Tune = TUNE, width: int = 80) -> str:
    return shown(tune_screen(tune, FOLDER), width)


def joined(text: str) -> str:
    """The words of a screen, however it was wrapped."""
    return " ".join(text.split())


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


# numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00 ms"),
        (0.004, "<0.01 ms"),
        (0.42, "0.42 ms"),
        (5.312, "5.31 ms"),
        (9.996, "10.0 ms"),
        (93.24, "93.2 ms"),
        (215.3, "215 ms"),
        (999.4, "999 ms"),
        (999.7, "1.00 s"),
        (12_345.0, "12.3 s"),
        (4_000_000.0, "4,000 s"),
        (None, "unknown"),
        (float("nan"), "unknown"),
    ],
)
def test_ms(value: float | None, text: str) -> None:
    assert ms(value) == text


def test_small_numbers() -> None:
    assert [percent(x) for x in (0.61, 0.001, 0.0, 1.0, None)] == ["61%", "<1%", "0%", "100%", "unknown"]
    assert [ratio(x) for x in (2.312, 0.5, None)] == ["2.31×", "0.50×", "unknown"]
    assert [minutes(x) for x in (0, 61.2, 3723, -5, float("inf"))] == ["00:00", "01:01", "1:02:03", "00:00", "00:00"]
    assert between(210.2, 231.4, " – p90 ") == "210 – p90 231 ms"
    assert between(990.0, 1200.0, " – ") == "990 ms – 1.20 s"


def test_sizes_have_three_digits() -> None:
    assert [size_text(mib * 2.0**20) for mib in (1, 999, 1000, 1536)] == ["1 MiB", "999 MiB", "0.977 GiB", "1.5 GiB"]


def test_bar_is_as_long_as_its_share() -> None:
    assert bar(0.5, 10) == "█████"
    assert bar(1.0, 10) == bar(7.0, 10) == "█" * 10
    assert bar(0.0001, 10) == "▏"
    assert bar(0.0, 10) == bar(float("nan"), 10) == bar(-1.0, 10) == ""


# run


def test_run_screen_shows_the_records_numbers() -> None:
    text = run_text()
    assert text.startswith("input-bound · 215 ms a step (p10 210 – p90 231 ms) · 297 samples/s\n")
    assert "60 steady of 71 steps, 2 ranks" in text
    assert re.search(r"^data +131 ms +61% █+", text, re.MULTILINE)
    assert re.search(r"^optimizer +6\.00 ms +3%", text, re.MULTILINE)
    for part in ("61% The loader", "131 ms in next()", "train.py:41 in main", "levers: loader-workers, pin-memory"):
        assert part in text
    for part in ("The device waits. · instead: Use worker processes.", "hotlap tune python train.py", str(FOLDER)):
        assert part in text
    assert "/home/u/proj" not in text
    assert "unsettled" not in text and "command " not in text and "problems" not in text
    assert not re.search(r"^other|^phase.*device", text, re.MULTILINE), "what was not measured has no row or column"


def test_run_screen_fits_a_terminal() -> None:
    text = run_text(msgspec.structs.replace(BEFORE, findings=(LOADER,) * 2, gpu_phases=BEFORE.phases))
    assert len(text.splitlines()) <= 24
    assert max(map(cell_len, text.splitlines())) <= 80


def test_device_times_stand_beside_host_times() -> None:
    text = run_text(msgspec.structs.replace(BEFORE, gpu_phases=Phases(data=1.5, backward=198.5)))
    assert re.search(r"^data +131 ms +61% █+▎? +1\.50 ms +1%", text, re.MULTILINE)
    assert re.search(r"^backward +48\.1 ms +22% █\S* +198 ms +99% █+", text, re.MULTILINE)
    assert re.search(r"^h2d +4\.25 ms +2% \S* +-", text, re.MULTILINE)


def test_at_most_three_findings_and_the_rest_counted() -> None:
    findings = tuple(msgspec.structs.replace(LOADER, title=f"cause {n}") for n in range(5))
    text = run_text(msgspec.structs.replace(BEFORE, findings=findings))
    assert "cause 2" in text and "and 2 more" in text and text.count("Use worker processes") == 3
    assert "61% cause 3, at train.py:41 in main · 61% cause 4, at train.py:41 in main" in joined(text)


def test_a_finding_that_the_training_is_wrong_is_always_shown_and_first() -> None:
    slow = tuple(msgspec.structs.replace(LOADER, title=f"cause {n}") for n in range(5))
    wrong = msgspec.structs.replace(LOADER, id="repeated-data", share=0.0, title="the same samples", wrong=True)
    text = run_text(msgspec.structs.replace(BEFORE, findings=(*slow, wrong)))
    assert re.search(r"^wrong +the same samples *\n(.*\n)+? +61% +cause 0 *\n", text, re.MULTILINE)
    assert "cause 1" in text and "61% cause 2, at" in joined(text) and "and 3 more" in text
    many = run_text(msgspec.structs.replace(BEFORE, findings=(*slow, *(wrong,) * 4)))
    assert many.count("the same samples") == 4 and "cause 0" in many and "and 4 more" in many
    tuned = tune_text(msgspec.structs.replace(TUNE, baseline=msgspec.structs.replace(BEFORE, findings=(LOADER, wrong))))
    assert "wrong with and without levers: the same samples; 131 ms" in tuned and "wrong" not in tune_text()


def test_what_is_not_certain_is_said() -> None:
    text = joined(
        run_text(
            msgspec.structs.replace(
                BEFORE,
                bound="unknown",
                settled=False,
                throughput=None,
                unknown=("no communication was seen",),
                findings=(msgspec.structs.replace(LOADER, share=0.4),),
            )
        )
    )
    assert text.startswith("bound unknown · 215 ms") and "samples/s" not in text
    assert "unsettled: step times never became steady" in text and "note no communication was seen" in text


def test_a_cause_of_most_of_the_step_is_the_headline_where_no_bound_is_known() -> None:
    text = joined(run_text(msgspec.structs.replace(BEFORE, bound="unknown")))
    assert text.startswith("61% The loader") and "bound unknown" not in text


def test_beside_a_cause_what_only_says_where_the_time_is_takes_two_lines() -> None:
    cause = msgspec.structs.replace(LOADER, named=True, bound="compute", title="the cause")
    said = "88% with 1 cause listed separately"
    where = msgspec.structs.replace(
        LOADER, id="compute", bound="compute", title="computing Net", share=0.3, evidence=f"{said}; forward 9 ms"
    )

    def told(*findings: Finding) -> str:
        return joined(run_text(msgspec.structs.replace(BEFORE, findings=findings)))

    assert f"30% computing Net {said} · at train.py:41 in main" in told(cause, where)
    assert told(cause, where).count("Use worker processes") == 1
    for one in (
        msgspec.structs.replace(cause, bound="input"),  # beside the model's phases, however large
        msgspec.structs.replace(cause, id="compute"),  # what is left of a divided one
        msgspec.structs.replace(cause, share=0.2),
    ):
        assert told(one, where).count("Use worker processes") == 2
    unknown = msgspec.structs.replace(cause, share=0.0)
    assert re.search(r"cause the cause", joined(run_text(msgspec.structs.replace(BEFORE, findings=(unknown,)))))


def test_a_machine_without_a_gpu_is_told_nothing_of_one() -> None:
    used = Utilisation(why="no GPU worked in these steps")
    assert "GPU" not in run_text(msgspec.structs.replace(BEFORE, device="cpu", device_name=None, utilisation=used))


@pytest.mark.parametrize(("peak", "told"), [(70, True), (20, False)])
def test_memory_is_told_where_it_is_short(peak: int, told: bool) -> None:
    text = joined(run_text(msgspec.structs.replace(BEFORE, peak_bytes=peak * 2**30, memory_bytes=80 * 2**30)))
    assert (f"memory {peak}.0 of 80.0 GiB at the peak" in text) is told


def test_inference_says_what_a_step_is() -> None:
    held = msgspec.structs.replace(BEFORE, evaluations=3, evaluating=0.378)
    assert "3 steps with an evaluation left out (38% of the time)" in joined(run_text(held))
    assert "evaluation" not in run_text()
    assert "inference: a step is one forward" in run_text(msgspec.structs.replace(BEFORE, mode="inference"))
    assert "inference" not in run_text()


def test_without_a_diagnosis_the_reason_stands_first() -> None:
    assert run_text(None, why_none="only 2 steps were seen").startswith("no verdict: only 2 steps were seen\n")
    nothing = msgspec.structs.replace(BEFORE, mode="none", phases=Phases(), step_ms=0.0)
    assert run_text(nothing).startswith("no verdict: no training or inference step was seen\n")
    assert "0.00 ms" not in run_text(nothing)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"status": "failed", "exit_code": 3, "wall_s": 75.0}, "the command failed after 01:15, exit code 3"),
        ({"status": "failed", "exit_code": None, "signal": 9}, "the command failed, ended by SIGKILL"),
        ({"status": "failed", "exit_code": None, "signal": 4000}, "the command failed, ended by signal 4000"),
        ({"status": "failed", "exit_code": None, "signal": 15}, "command  failed, ended by SIGTERM"),
        ({"status": "timeout", "exit_code": None}, "command  timeout"),
    ],
)
def test_how_the_command_ended(changes: dict, text: str) -> None:
    """What failed by itself is told first."""
    run = msgspec.structs.replace(RUN, **changes)
    said = run_text(run=run)
    assert text in said and said.startswith(text) is run.failed_itself and "command  " not in run_text()
    assert "command  failed" in run_text(None, run=run) or run.status == "timeout"


def test_levers_of_the_run_are_named() -> None:
    run = msgspec.structs.replace(RUN, levers=(Lever(name="tf32"),), recipe="fast.toml")
    assert "recipe fast.toml · levers tf32" in joined(run_text(run=run))


def test_what_the_deciles_are_of_is_said_where_it_is_not_single_steps() -> None:
    means = msgspec.structs.replace(BEFORE, spread=msgspec.structs.replace(BEFORE.spread, of=12))
    assert any("(p10 210 – p90 231 ms of means over 12 steps)" in part for part in headline(means))
    assert "means over" not in " ".join(headline(BEFORE))


@pytest.mark.parametrize(("allowed", "weak"), [(0.757, True), (0.03, False), (None, False)])
def test_a_test_that_can_hardly_fail_is_told(allowed: float | None, weak: bool) -> None:
    parity = Parity(ok=True, level="numeric", why="", loss_gap=0.02, allowed=allowed, steps=25)
    assert any("weak test" in part for part in parity_parts(parity)) is weak


def test_own_problems_are_counted_and_the_first_is_shown() -> None:
    problems = [Problem(where="forward hook", what="TypeError: x", lever="tf32"), Problem(where="b", what="second")]
    text = joined(run_text(problems=problems))
    assert "2 problems of hotlap's own" in text and "lever tf32, forward hook: TypeError: x" in text
    assert "runs/one/rank-*/problems.jsonl" in text and "second" not in text


# tune


def test_tune_screen_shows_the_records_numbers() -> None:
    text = tune_text()
    said = "2.31× faster, proved (95% interval 2.25–2.38; 2 fresh starts of each side, 16 turns each): 215 ms → 93.1 ms"
    assert joined(text).startswith(f"{said} a step before input-bound")
    assert "before input-bound · after compute-bound" in text
    assert re.search(r"^data +131 ms █+\S* +1\.11 ms ▏", text, re.MULTILINE)
    assert re.search(r"^h2d +4\.25 ms \S+ +-", text, re.MULTILINE)
    assert re.search(
        r"^loader-workers workers=8 +exact +≤ 2\.44× +2\.12× \(2\.00–2\.25\) +switching", text, re.MULTILINE
    )
    assert re.search(r"^compile +1\.43× \(1\.40–1\.46\) parity failed at step 7", text, re.MULTILINE)
    assert re.search(r"^channels-last +- no convolution was seen", text, re.MULTILINE)
    assert text.index("compile ") < text.index("channels-last")
    words = joined(text)
    assert "holds, numeric · 40 steps compared · loss gap 0.00213, 0.0061 allowed" in words
    assert (
        "tune took 09:41 for 23 starts of the command" in words
        and "the script sets no seed, so hotlap set 1234" in words
        and "after 312 steps" in words
    )
    for part in ("2 × NVIDIA H100 · driver 550.54", "AMD EPYC, 16 cores, 128 GiB", "Python 3.12.1"):
        assert part in words
    assert "git 0123456789 with changes" in words
    assert "hotlap run --recipe runs/one/recipe.toml python train.py --lr 3e-4\n" in text
    assert text.endswith("hotlap patch runs/one/recipe.toml\n")
    assert "not finished" not in text and "--resume" not in text


def test_bars_share_one_scale() -> None:
    rows = {line.split(" ")[0]: line for line in tune_text().splitlines()}
    before, after = re.findall(r"[█▉▊▋▌▍▎▏]+", rows["forward"])
    assert before == after
    slower, faster = re.findall(r"[█▉▊▋▌▍▎▏]+", rows["data"])
    assert len(slower) > 10 and len(faster) == 1


def test_device_time_is_shown_only_where_both_sides_have_it() -> None:
    device = Phases(forward=77.7)
    before, after = (msgspec.structs.replace(side, gpu_phases=device) for side in (BEFORE, AFTER))
    both = tune_text(msgspec.structs.replace(TUNE, baseline=before, tuned=after))
    assert "device time" in both and "77.7 ms" in both
    one = tune_text(msgspec.structs.replace(TUNE, baseline=before))
    assert "host time" in one and "77.7 ms" not in one


def test_no_gain_is_said_first_and_offers_no_recipe() -> None:
    text = tune_text(NO_GAIN)
    evidence = "2 fresh starts of each side, 16 turns each"
    assert joined(text).startswith(f"no gain: 1.00× (95% interval 0.98–1.03; {evidence}); 215 ms a step before")
    assert "faster" not in text and "--recipe" not in text and "kept" not in text
    assert "limit input-bound: The loader works in the training process, at /home/u/proj/train.py:41" in joined(text)
    none = tune_text(msgspec.structs.replace(NO_GAIN, speedup=None, interval=None))
    assert none.startswith("no gain: no lever helped; 215 ms a step\n")
    apart = Parity(ok=False, level="numeric", why="losses part")
    found = msgspec.structs.replace(NO_GAIN, speedup=1.96, interval=Interval(low=1.08, high=3.57), parity=apart)
    said = f"nothing kept: 1.96× (95% interval 1.08–3.57; {evidence}) without parity; 215 ms a step"
    assert joined(tune_text(found)).startswith(said)


def test_a_recipe_without_proof_is_not_recommended() -> None:
    not_proved = tune_text(msgspec.structs.replace(NO_GAIN, kept=TUNE.kept, recipe="recipe.toml"))
    assert not_proved.startswith("no gain") and "loader-workers workers=8" in not_proved
    assert "--recipe" not in not_proved and "hotlap advise runs/one" in not_proved
    failed = tune_text(msgspec.structs.replace(TUNE, parity=Parity(ok=False, level="numeric", why="NaN at step 3")))
    assert "parity failed: do not train with these levers" in failed and "--recipe" not in failed
    assert "parity failed:" not in tune_text()


def test_a_noisy_machine_is_said() -> None:
    assert "noisy" not in tune_text(msgspec.structs.replace(TUNE, noise=0.05))
    noisy = tune_text(msgspec.structs.replace(TUNE, noise=math.log(2.5)))
    assert "a noisy machine: two runs of the bare command differ by 150% in step time\n" in noisy


def test_a_side_that_is_not_steady_is_told_as_by_run() -> None:
    uneven = msgspec.structs.replace(BEFORE, unknown=(f"{NOT_STEADY}: some take longer", "samples/s is not known"))
    text = joined(tune_text(msgspec.structs.replace(TUNE, baseline=uneven)))
    assert "before, in the run below: step time is not steady: some take longer" in text and "samples/s" not in text
    assert "after, in the run below: step time is not" in tune_text(msgspec.structs.replace(TUNE, tuned=uneven))
    assert NOT_STEADY not in tune_text()


def test_unfinished_tune_says_why_and_how_to_go_on() -> None:
    text = tune_text(UNFINISHED)
    assert re.match(r"no gain yet: .*; 215 ms a step\n", text)
    assert "\nnot finished, the budget of 10:00 ran out\n" in text
    assert text.endswith("hotlap tune --resume runs/one python train.py --lr 3e-4\n")
    late = tune_text(msgspec.structs.replace(TUNE, complete=False, why_incomplete="interrupted"))
    assert late.startswith("2.31× faster") and "not finished, interrupted" in late
    assert "hotlap tune --resume runs/one python train.py --lr 3e-4\n" in late and "hotlap run --recipe" in late


def test_failed_parity_and_unsettled_sides_are_said() -> None:
    failed = Parity(ok=False, level="numeric", why="NaN at step 3", steps=3)
    tune = msgspec.structs.replace(TUNE, parity=failed, tuned=msgspec.structs.replace(AFTER, settled=False))
    words = joined(tune_text(tune))
    assert "parity FAILED, numeric · 3 steps compared NaN at step 3" in words
    assert "unsettled after:" in words and "loss gap" not in words


def test_a_long_list_of_dropped_levers_is_cut_and_counted() -> None:
    dropped = tuple(Dropped(lever=f"lever-{n}", why="does not apply") for n in range(20))
    text = tune_text(msgspec.structs.replace(TUNE, dropped=dropped))
    assert text.count("does not apply") == 8 and "and 12 more in tune.json" in text


# text from outside


def hostile_run() -> RenderableType:
    finding = msgspec.structs.replace(
        LOADER, title=HOSTILE, evidence=HOSTILE, why=HOSTILE, levers=(HOSTILE,), where=Place(file=HOSTILE)
    )
    diagnosis = msgspec.structs.replace(
        BEFORE, findings=(finding,), unknown=(HOSTILE,), next=HOSTILE, device_name=HOSTILE, throughput_unit=HOSTILE
    )
    run = msgspec.structs.replace(RUN, recipe=HOSTILE, levers=(Lever(name=HOSTILE),))
    return run_screen(run, diagnosis, [Problem(where=HOSTILE, what=HOSTILE)], Path(HOSTILE))


def hostile_tune() -> RenderableType:
    tune = msgspec.structs.replace(
        TUNE,
        command=("python", HOSTILE),
        kept=(msgspec.structs.replace(TUNE.kept[0], lever=HOSTILE, settings={HOSTILE: HOSTILE}),),
        dropped=(Dropped(lever=HOSTILE, why=HOSTILE),),
        parity=Parity(ok=True, level=HOSTILE, why=HOSTILE, samples=HOSTILE),
        environment=msgspec.structs.replace(ENVIRONMENT, cpu=HOSTILE, driver=HOSTILE, git_commit="\x1b[2J"),
        complete=False,
        why_incomplete=HOSTILE,
        recipe=HOSTILE,
    )
    return tune_screen(tune, Path(HOSTILE))


@pytest.mark.parametrize("make", [hostile_run, hostile_tune])
@pytest.mark.parametrize("width", [200, 80, 40])
def test_hostile_names_are_text(make, width: int) -> None:
    text = shown(make(), width)
    assert not set(text) & {"\x1b", "\x07", "\r", "\u202e"}
    if width == 200:
        assert TAMED in text


@pytest.mark.parametrize("make", [hostile_run, hostile_tune])
def test_hostile_names_steer_no_terminal(make) -> None:
    console = Console(file=Terminal(), width=200, force_terminal=True, color_system="truecolor")
    console.print(make())
    codes = re.findall(r"\x1b(\[[0-9;]*m)?", console.file.getvalue())
    assert codes and all(codes), "an escape that only sets a style is rich's own"
    assert TAMED in re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


@given(st.text(st.characters(exclude_categories=())))
def test_clean_leaves_only_printable_text(text: str) -> None:
    result = clean(text)
    assert result.isprintable() and len(result) <= LONGEST_TEXT
    result.encode()


def test_clean_keeps_text_and_bounds_it() -> None:
    assert clean("größe 数据 a  b") == "größe 数据 a  b"
    assert clean("x" * 10_000) == "x" * (LONGEST_TEXT - 1) + "…"
    assert plain("[red]x").plain == "[red]x"


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
@pytest.mark.parametrize("width", [200, 80, 40, 20])
def test_a_shown_command_can_be_pasted(width: int) -> None:
    words = ["one", "two words", "it's", "", "~", "$HOME", "a\nb\tc\x1b[0m\\", "é\u00a0x", "/long/" * 40, "a b'" * 50]
    text = shown(CommandLine(["printf", "%s|", *words]), width)
    assert max(map(cell_len, text.splitlines())) <= width and "\x1b" not in text
    done = subprocess.run(["bash", "-c", text.encode()], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"})
    assert done.stdout.decode().split("|")[:-1] == words


# terminals


@pytest.mark.parametrize("width", [40, 20])
@pytest.mark.parametrize("tune", [TUNE, NO_GAIN, UNFINISHED])
def test_narrow_terminals_get_everything(width: int, tune: Tune) -> None:
    for text in (run_text(width=width), tune_text(tune, width)):
        assert max(map(cell_len, text.splitlines())) <= width
    words = joined(tune_text(TUNE, 40))
    for part in (
        "2.31× faster",
        "predicted ≤ 2.44×",
        "worth (95%) 2.12× (2.00–2.25)",
        "measured by switching",
        "parity failed at step 7",
    ):
        assert part in words
    assert re.search(r"^data +131 ms +61%", run_text(width=40), re.MULTILINE)


def test_pipes_get_no_escape_codes() -> None:
    for text in (run_text(), run_text(None), tune_text(), tune_text(NO_GAIN), tune_text(UNFINISHED)):
        assert "\x1b" not in text


def terminal_text(screen: RenderableType) -> str:
    console = Console(file=Terminal(), width=80, force_terminal=True, color_system="standard")
    console.print(screen)
    return console.file.getvalue()


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = tune_screen(TUNE, FOLDER)
    assert re.search(r"\x1b\[[0-9;]*3[0-7]m", terminal_text(screen))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[([0-9;]*;)?[349][0-7](;|m)", terminal_text(screen))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_other_encodings_get_ascii(encoding: str) -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=80)
    console.print(run_screen(RUN, BEFORE, (), FOLDER))
    console.print(tune_screen(TUNE, FOLDER))
    file.flush()
    text = file.buffer.getvalue().decode("ascii")
    said = "2.31x faster, proved (95% interval 2.25-2.38; 2 fresh starts of each side, 16 turns each): 215 ms > 93.1 ms"
    assert said in joined(text)
    assert re.search(r"^data +131 ms +61% #{10,}", text, re.MULTILINE) and "?" not in text


def test_stderr_console_writes_to_stderr_without_markup(capsys: pytest.CaptureFixture[str]) -> None:
    stderr_console().print("[red]x[/red] :boom: 12")
    out, err = capsys.readouterr()
    assert out == "" and err == "[red]x[/red] :boom: 12\n"


# progress


def drive(progress: Progress, clock: Clock) -> None:
    """One trial of a tune."""
    with closing(progress):
        progress.start("tune python train.py")
        clock.now += 43.0
        progress.trial("screen", HOSTILE)
        progress.step(23, 60)
        progress.result(f" ok  tf32            91.8 ms  2.28x  kept {'and a long reason ' * 8}{HOSTILE}")


def test_progress_in_a_pipe_is_one_plain_line_a_result() -> None:
    console, clock = Console(file=io.StringIO(), width=40), Clock()
    drive(Progress(console, 600.0, clock), clock)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 2 and lines[0] == "tune python train.py"
    assert lines[1].startswith(" ok  tf32            91.8 ms  2.28x  kept") and lines[1].endswith(TAMED)
    assert "\x1b" not in console.file.getvalue()


def test_a_log_is_silent_for_a_minute_at_most() -> None:
    console, clock = Console(file=io.StringIO(), width=40), Clock()
    progress = Progress(console, 600.0, clock)
    progress.start("tune python train.py")
    progress.result("proved  tf32  1.30× (1.20–1.41) over the bare command")
    for clock.now in (30.0, 61.0, 90.0, 130.0):
        progress.trial("prove", "tf32")
        progress.step(3, 8)
    progress.close()
    assert console.file.getvalue().splitlines()[2:] == [
        "at 01:01, 08:59 left  best: 1.30× proved  prove: tf32",
        "at 02:10, 07:50 left  best: 1.30× proved  prove: tf32",
    ]


def test_forced_colours_make_no_terminal_of_a_log() -> None:
    console, clock = Console(file=io.StringIO(), width=40, force_terminal=True), Clock()
    drive(Progress(console, 600.0, clock), clock)
    assert len(console.file.getvalue().splitlines()) == 2
    assert not re.search(r"\x1b\[\??[0-9;]*[A-HJKhl]", console.file.getvalue())


def test_status_line_has_times_trial_and_steps() -> None:
    console, clock = Console(file=io.StringIO(), width=80), Clock()
    progress = Progress(console, 600.0, clock)
    clock.now = 83.0
    progress.trial("screen", "tf32")
    progress.step(23, 60)
    assert shown(progress)[1:] == " 01:23, 08:37 left  screen: tf32  turn 23 of 60 at most\n"
    progress.step(24)
    assert "24 steps\n" in shown(progress)
    progress.trial("confirm", "")
    assert shown(progress).endswith("left  confirm\n")
    clock.now = 700.0
    assert "11:40, 00:00 left" in shown(progress)
    narrow = shown(progress, 20)
    assert cell_len(narrow.rstrip("\n")) <= 20 and narrow.count("\n") == 1 and "11:40" in narrow


def test_progress_on_a_terminal_keeps_results_and_leaves_no_status_line() -> None:
    console, clock = Console(file=Terminal(), width=80, force_terminal=True), Clock()
    progress = Progress(console, 600.0, clock)
    drive(progress, clock)
    text = console.file.getvalue()
    assert "00:00, 10:00 left" in text and " ok  tf32            91.8 ms  2.28x  kept" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1, "the cursor comes back"
    progress.close()
    assert console.file.getvalue() == text


def test_the_status_line_goes_when_the_tune_fails() -> None:
    console = Console(file=Terminal(), width=80, force_terminal=True)
    with pytest.raises(KeyboardInterrupt), closing(Progress(console, 600.0, Clock())) as progress:
        progress.start("tune")
        raise KeyboardInterrupt
    assert "\x1b[?25h" in console.file.getvalue()


def test_money_and_energy_are_told_where_they_are_known() -> None:
    lost = msgspec.structs.replace(BEFORE, gpu_watts=400.0, step_ms=50.0, throughput=1000.0)
    told = list(money_parts(lost, 3.5))
    share = next(one.share for one in lost.findings if one.share)
    assert told == [
        "400 W, 20.0 J a step (GPU, by NVML)", "$84.00 a day at $3.50 an hour",
        f"{share:.0%} of it, ${84 * share:.2f}, goes to the first finding", "$0.972 a million samples",
    ]  # fmt: skip
    assert list(money_parts(BEFORE, None)) == []
    assert "$84.00 a day" in run_text(lost, price=3.5) and "$" not in run_text(lost)


def test_what_a_change_won_is_asked_by_commands_that_can_be_pasted(tmp_path: Path) -> None:
    """`hotlap diff RUN RUN` could not be; and options and the environment were lost."""
    folder = tmp_path / "run"
    for rank in (folder / "rank-0", Path(f"{folder}-2")):
        rank.mkdir(parents=True)
    variables = {"CUDA_HOME": "/usr", "OMP_NUM_THREADS": "1"}
    run = msgspec.structs.replace(
        RUN,
        options=("--steps", "50", "--profile"),
        environment=msgspec.structs.replace(ENVIRONMENT, variables=variables),
    )
    (folder / "run.json").write_bytes(msgspec.json.encode(run))
    changed = msgspec.structs.replace(BEFORE, next=f"make the change at line 58, {COMPARE}")
    lines = shown(run_screen(run, changed, (), folder), 400).splitlines()
    assert lines[-3:] == [
        f"next: make the change at line 58, {COMPARE}",
        f"env OMP_NUM_THREADS=1 hotlap run --steps 50 --profile --out {folder}-3 {' '.join(RUN.command)}",
        f"hotlap diff {folder} {folder}-3",
    ]
    alone = run_text(changed, 400)
    assert f"hotlap run --out {FOLDER}-2 {' '.join(RUN.command)}\nhotlap diff {FOLDER} {FOLDER}-2" in alone


def test_after_a_run_with_a_recipe_the_next_tune_is_the_one_that_made_it(tmp_path: Path) -> None:
    run = msgspec.structs.replace(RUN, recipe=str(tmp_path / "recipe.toml"))
    tries = msgspec.structs.replace(BEFORE, next="hotlap tune COMMAND...   (tries compile)")
    command = " ".join(RUN.command)
    for tune, said in (
        (None, f"next: a tune of the command without the recipe (tries compile)\nhotlap tune {command}"),
        (UNFINISHED, f"next: continue the recipe's tune (tries compile)\nhotlap tune --resume {tmp_path} {command}"),
        (TUNE, f"next: a tune of the command without the recipe (tries compile)\nhotlap tune {command}"),
    ):
        if tune is not None:
            (tmp_path / "tune.json").write_bytes(msgspec.json.encode(tune))
        assert run_text(tries, 400, run=run).endswith(f"{said}\n")


def test_copies_to_a_device_have_a_row_where_there_is_one() -> None:
    phases = Phases(data=1.0, h2d=0.0, forward=3.0)
    on_cpu = msgspec.structs.replace(BEFORE, device="cpu", phases=phases)
    assert not re.search(r"^h2d ", run_text(on_cpu), re.MULTILINE)
    on_gpu = msgspec.structs.replace(on_cpu, device="cuda", gpu_phases=phases)
    assert re.search(r"^h2d ", run_text(on_gpu), re.MULTILINE)


@pytest.mark.parametrize(("finding", "noted"), [("steps-grow", False), ("steps-jump", False), ("input", True)])
def test_how_step_times_change_is_told_once(finding: str, noted: bool) -> None:
    uneven = f"{NOT_STEADY}: it is 54.0 ms in some stretches of the run and 181 ms in others"
    one = msgspec.structs.replace(LOADER, id=finding)
    text = joined(run_text(msgspec.structs.replace(BEFORE, findings=(one,), unknown=(uneven, "another"))))
    assert (uneven in text) is noted and "note another" in text


def test_memory_that_workers_copy_is_shown_beside_dearer_findings() -> None:
    copies = Finding(id="worker-copies", bound="unknown", share=0.0, title="each worker copies the Python objects")
    others = [Finding(id=f"other-{at}", bound="compute", share=0.3, title="another") for at in range(4)]
    text = joined(run_text(msgspec.structs.replace(BEFORE, findings=(*others, copies))))
    assert "memory each worker copies the Python objects" in text
