"""Sides: processes that make steps only when it is their turn, and end when nobody gives them any."""

import contextlib
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from run_folders import Quiet

import hotlap
from agent.harness import ENV, Runner, free_port
from hotlap.experiment.outcome import refusal_in
from hotlap.experiment.side import JOURNALS, TURNS, Bench, Side, Special, drawn, turn_of, wave_of
from hotlap.launch.environment import environment
from hotlap.levers import all_levers
from hotlap.records.files import read_lines
from hotlap.records.run import Facts, Lever, LoaderFacts, Phases, Step
from hotlap.records.tune import Trial, Turn
from hotlap.runs.folder import RankFolder, RunFolder
from hotlap.runs.plan import RunPlan

HERE = Path(__file__).parent
SIDES = str(HERE / "scripts" / "sides.py")
BF16, LAST, FUSED = "bf16-autocast", "channels-last", "fused-optimizer"
Levers = dict[str, dict[str, Any]]


def command(*words: object) -> tuple[str, ...]:
    return (sys.executable, SIDES, *map(str, words))


def bench_in(folder: Path) -> Bench:
    plan = RunPlan(command("learns", 10**6), folder, environment(HERE), steps=12, seconds=0.05, seed=5, cwd=folder)
    return Bench(plan, Quiet())


@pytest.fixture(scope="module", autouse=True)
def variables() -> Iterator[None]:
    """One thread each, as two sides and their parent have two cores here; planted levers are found."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ENV, "PYTHONPATH": str(HERE / "planted")}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with bench_in(tmp_path_factory.mktemp("sides")) as made:
        yield made


@pytest.fixture(scope="module")
def sides(bench: Bench) -> dict[str, Side]:
    """All that most tests need, started at once."""
    commands = {
        "learns": command("learns", 400, 2),
        "still": command("still", 10**6),
        "ends": command("learns", 80),
        "crashes": command("crashes", 80),
        "slow": command("slow", 10**6),
        "validates": command("validates", 10**6),
    }
    made = {name: bench.start(name, command=words) for name, words in commands.items()}
    bench.ready(*made.values())
    return made


def pid_of(side: Side) -> int:
    facts = RankFolder(side.folder / "rank-0").facts
    assert facts is not None
    return facts.pid


def below(side: Side) -> list[psutil.Process]:
    return psutil.Process(pid_of(side)).children(recursive=True)


def states(processes: list[psutil.Process]) -> set[str]:
    return {process.status() for process in processes}


def output(side: Side) -> str:
    return (side.folder / "output.txt").read_text()


def size(side: Side) -> int:
    return (side.folder / "rank-0" / "steps.jsonl").stat().st_size


def steps_of(side: Side) -> list[Step]:
    return list(RankFolder(side.folder / "rank-0").steps)


def losses(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"^loss (\S+)$", text, re.MULTILINE)]


def until(true: Any, seconds: float = 10.0) -> bool:
    limit = time.monotonic() + seconds
    while not true() and time.monotonic() < limit:
        time.sleep(0.05)
    return bool(true())


def test_all_sides_find_what_was_compiled_in_one_place(sides: dict[str, Side]) -> None:
    """Whatever levers they have, and whether hotlap or the script compiles: a cache that one of them alone had filled
    made a tune's figures differ from run to run."""
    wanted = [all_levers()[name].environment({"mode": "default"}) for name in ("compile", "compile-blocks")]
    folders = {one["TORCHINDUCTOR_CACHE_DIR"] for one in wanted}
    bare = psutil.Process(pid_of(sides["still"])).environ()["TORCHINDUCTOR_CACHE_DIR"]
    assert folders == {bare}


def test_a_side_gets_ready_and_stands_still_while_another_has_its_turn(bench: Bench, sides: dict[str, Side]) -> None:
    learns, still = sides["learns"], sides["still"]
    assert learns.ready and still.ready
    assert learns.measured.outcome == "measured" and (learns.measured.step_ms or 0) > 0
    assert bench.diagnosis(learns.measured).steady_steps >= 8
    workers = below(learns)
    assert len(workers) == 2 and states(workers) == {psutil.STATUS_STOPPED}
    before, made = size(learns), len(steps_of(learns))
    for _ in range(2):
        turn = bench.turn(still, 30)
        assert turn is not None and turn.last - turn.first >= 31
    time.sleep(0.3)
    assert size(learns) == before and len(steps_of(learns)) == made == learns.gate.step
    assert states(workers) == {psutil.STATUS_STOPPED}


def test_a_turn_has_the_steps_that_were_asked_for_and_one_that_is_not_counted(
    bench: Bench, sides: dict[str, Side]
) -> None:
    """However short they are: of those only one in some is looked at."""
    side = sides["still"]
    for asked in (1, 5, 90, 3):
        first = side.gate.step
        turn = bench.turn(side, asked)
        assert turn is not None and side.ready
        assert (turn.first, turn.last) == (first, first + asked + 1) and len(steps_of(side)) == turn.last
        new = steps_of(side)[first:]
        assert [step.probe for step in new] == [True] + [False] * asked
        mean = sum(step.wall_ms for step in new[1:]) / asked
        assert turn.step_ms == pytest.approx(mean, rel=1e-3) and side.step_ms == turn.step_ms
        assert turn.rows == pytest.approx(4.0)
        assert turn.wall_ms >= sum(step.wall_ms for step in new[1:])
    assert list(read_lines(bench.plan.folder / TURNS, Turn))[-1] == turn
    assert 0 <= bench.turn_steps(side) - math.ceil(500 / side.step_ms) <= 500 / side.step_ms / 4 + 1


def test_an_evaluation_in_each_step_is_part_of_the_turn(bench: Bench, sides: dict[str, Side]) -> None:
    """As in training on one whole graph. None of their steps counted, so that they took no turns at all."""
    side = sides["validates"]
    turn = bench.turn(side, 5)
    assert turn is not None and all(step.evaluation for step in steps_of(side)[turn.first + 1 :])
    assert side.evaluates and turn.step_ms and not sides["still"].evaluates


def test_the_time_in_which_a_side_stood_still_is_no_step_s(bench: Bench, sides: dict[str, Side]) -> None:
    side = sides["still"]
    time.sleep(0.7)
    first = side.gate.step
    assert bench.turn(side, 4) is not None
    assert max(step.wall_ms for step in steps_of(side)[first:]) < 600


def test_workers_go_on_in_a_turn_and_losses_are_the_script_s_own(
    bench: Bench, sides: dict[str, Side], runner: Runner
) -> None:
    side = sides["learns"]
    workers = below(side)
    seen: set[str] = set()
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            seen.update(states(workers))
            time.sleep(0.002)

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for count in (1, 120, 7):
            assert bench.turn(side, count) is not None
    finally:
        over.set()
        looking.join()
    assert seen - {psutil.STATUS_STOPPED} and until(lambda: states(workers) == {psutil.STATUS_STOPPED})
    printed = output(side)
    own = runner.bare(SIDES, "learns", "400", "2").output
    assert own.startswith(printed) and len(losses(printed)) >= 130
    recorded = [step.loss for step in steps_of(side)]
    assert recorded == losses(own)[: len(recorded)], "bit for bit"


def test_levers_are_switched_between_steps_and_taken_out_all_is_as_it_was(bench: Bench, sides: dict[str, Side]) -> None:
    side = sides["still"]

    def turn(*names: str) -> list[float | None]:
        levers: Levers = {name: {} for name in names}
        first = side.gate.step
        made = bench.turn(side, 6, levers)
        assert made is not None and made.levers == tuple(sorted(names)) and side.in_now == levers
        return [step.loss for step in steps_of(side)[first:]]

    (own,) = set(turn())
    (other,) = set(turn(BF16))
    assert other != own and other == pytest.approx(own, rel=0.05)
    assert set(turn()) == {own}, "switched out the forward is the same bit for bit"
    both = set(turn(BF16, LAST, FUSED))
    assert own not in both and len(both) == 1
    assert set(turn(LAST, FUSED)) != both
    assert set(turn()) == {own}
    assert set(turn(BF16)) == {other}, "and in again it does what it did"
    assert set(turn()) == {own}
    took = {json.loads(line)["lever"] for line in (side.folder / "rank-0" / "levers.jsonl").read_text().splitlines()}
    assert took == {BF16, LAST, FUSED}
    assert refusal_in(side.folder) is None
    assert set(losses(output(side))[: side.gate.step]) == {*both, own, other, *turn(LAST, FUSED)} - {None}
    turn()


def test_a_lever_that_raises_when_it_is_switched_on_is_refused_and_the_side_goes_on(
    bench: Bench, sides: dict[str, Side]
) -> None:
    side = sides["still"]
    first = steps_of(side)[-1].loss
    assert bench.turn(side, 4, {"planted": {"what": "raises"}}) is not None
    refused = refusal_in(side.folder)
    assert refused is not None and "planted could not be put in" in refused[1] and "not this one" in refused[1]
    assert refused[0] == "refused" and refused[2] == {"lever": "planted"} and side.ready
    assert bench.turn(side, 4, {}) is not None and steps_of(side)[-1].loss == first
    absent = bench.turn(side, 4, {"absent": {}})
    assert absent is not None and side.ready


def test_a_script_that_comes_to_its_end_in_a_turn(bench: Bench, sides: dict[str, Side], runner: Runner) -> None:
    side = sides["ends"]
    assert bench.turn(side, 500) is None
    assert not side.alive and not side.ready
    assert side.measured.ended == "the command ended by itself"
    assert next(one for one in bench.done if one.id == side.number).ended == side.measured.ended
    assert output(side) == runner.bare(SIDES, "learns", "80").output
    assert bench.evidence(side.measured).losses == tuple((loss,) for loss in losses(output(side)))


def test_a_crash_in_a_turn(bench: Bench, sides: dict[str, Side]) -> None:
    side = sides["crashes"]
    assert bench.turn(side, 500) is None and not side.alive
    assert side.measured.ended == "exit code 1: ValueError: planted" and side.measured.outcome == "measured"


def test_a_turn_that_takes_too_long_ends_the_side_and_no_other(bench: Bench, sides: dict[str, Side]) -> None:
    side = sides["slow"]
    begun = time.monotonic()
    assert bench.turn(side, 100, timeout_s=1.5) is None
    assert not side.alive and side.measured.ended == "its steps were too slow"
    assert time.monotonic() - begun < 6 and sides["learns"].ready


def test_a_side_that_is_told_to_end_ends_by_itself(bench: Bench, sides: dict[str, Side]) -> None:
    side = sides["learns"]
    family = [psutil.Process(pid_of(side)), *below(side)]
    begun = time.monotonic()
    bench.end(side)
    assert time.monotonic() - begun < 4 and not side.alive
    assert until(lambda: not any(alive(one) for one in family))
    run = json.loads((side.folder / "run.json").read_text())
    assert (run["status"], run["exit_code"]) == ("finished", 0)
    facts = RankFolder(side.folder / "rank-0").facts
    assert facts is not None and facts.stopped
    bench.end(side)


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_sides_that_do_not_get_ready_say_why(tmp_path: Path) -> None:
    """A command that is none of training, one that ends too soon, one with a lever that can't be put in, a slow one."""
    with bench_in(tmp_path) as bench:
        nothing = bench.start("nothing", command=(sys.executable, "-c", "print('done')"))
        fails = bench.start("fails", command=(sys.executable, "-c", "raise SystemExit('no data')"))
        short = bench.start("short", command=command("still", 6))
        raises = Lever(name="planted", settings={"what": "raises"})
        refused = bench.start("try", [raises], command=command("still", 10**6))
        slow = bench.start("try", special=Special(slow_ms=500.0), command=command("slow", 10**6))
        late = bench.start("late", command=(sys.executable, "-c", "import time; time.sleep(600)"), timeout_s=1.0)
        begun = time.monotonic()
        bench.ready(nothing, fails, short, refused, slow, late)
        assert time.monotonic() - begun < 40
        outcomes = {side.purpose: side.measured.outcome for side in (nothing, fails, short, refused, late)}
        assert outcomes == {
            "nothing": "too few steps", "fails": "crashed", "short": "too few steps", "try": "refused",
            "late": "timeout",
        }  # fmt: skip
        assert fails.measured.why == "exit code 1: no data" and refused.measured.lever == "planted"
        assert slow.measured.outcome in {"too slow", "measured"}
        assert not any(side.alive for side in (nothing, fails, short, refused, late))
        assert [one.id for one in read_lines(tmp_path / JOURNALS[0], Trial)] == [one.id for one in bench.done]
        assert len(bench.done) == 6


@pytest.mark.parametrize("how", ["abort", "exit", "kill", "raise"])
def test_a_start_that_a_worker_ends_points_at_the_lever_of_the_workers(how: str, tmp_path: Path) -> None:
    """Seen: a ResNet-50's worker aborted when eleven levers went in at once, and all of them were lost."""
    lever = all_levers()["loader-workers"]
    uses = [Lever(name=lever.name, settings={"workers": 2, "prefetch": 2, "pin_memory": False, "persistent": True})]
    with bench_in(tmp_path) as bench:
        script = (sys.executable, str(HERE / "scripts" / "dying_workers.py"), how)
        side = bench.start("try", uses, command=script)
        bench.ready(side)
        assert side.measured.outcome == "crashed"
        assert any(sign in side.measured.why for sign in lever.signs), side.measured.why
        bare = bench.start("bare", command=script)
        bench.ready(bare)
        assert bare.ready, bare.measured


TOGETHER = Special(together=True)


def test_first_steps_that_compile_are_made_at_once_and_the_others_one_side_after_another(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        bench.cores = 64
        one, two = (bench.start("meets", (), TOGETHER, 60.0, command("meets", 10**6)) for _ in range(2))
        bare = bench.start("bare", command=command("still", 10**6))
        bench.ready(one, two, bare)
        assert one.ready and two.ready and bare.ready, (one.measured, two.measured)
        first, second, third = (steps_of(side) for side in (one, two, bare))
        assert max(first[3].time, second[3].time) < min(first[4].time, second[4].time)
        assert first[-1].time < second[4].time and second[-1].time < third[0].time
        for side in (one, two, bare):
            assert 0 < side.until_s < side.measured.wall_s and side.rest_s > 0
        assert bench.turn(one) is not None and bench.turn(two) is not None


def test_a_side_stands_still_after_first_steps_with_its_workers_and_that_is_no_step_s_time(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        side = bench.start("learns", special=TOGETHER, command=command("learns", 10**6, 2))
        assert until(lambda: bench._look(side, 0.05) or side.gate.at_start, 30.0)
        workers = below(side)
        assert len(workers) == 2 and states(workers) == {psutil.STATUS_STOPPED}
        made = steps_of(side)
        time.sleep(1.0)
        assert len(steps_of(side)) == len(made) == 4 and all(step.probe for step in made)
        bench.ready(side)
        made = steps_of(side)
        assert side.ready and max(step.wall_ms for step in made[4:]) < 900 and made[4].probe and not made[5].probe
        assert losses(output(side)) == [step.loss for step in made]


def test_a_script_that_ends_before_it_has_made_its_first_steps_is_told_as_ever(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        lengths = {"short": ("still", 3), "crashes": ("crashes", 2), "learns": ("learns", 10**6)}
        sides = [bench.start(name, special=TOGETHER, command=command(*words)) for name, words in lengths.items()]
        nothing = bench.start("nothing", special=TOGETHER, command=(sys.executable, "-c", "print('done')"))
        bench.ready(*sides, nothing)
        assert [side.measured.outcome for side in (*sides, nothing)] == [
            "too few steps", "crashed", "measured", "too few steps",
        ]  # fmt: skip
        assert sides[1].measured.why == "exit code 1: ValueError: planted"


PARENT = """
import sys
from pathlib import Path
from test_side import bench_in, below, command, pid_of
from hotlap.launch.supervise import adopt_orphans

adopt_orphans()
with bench_in(Path(sys.argv[1])) as bench:
    one, other = (bench.start("one", command=command("learns", 10**6, workers)) for workers in (0, 2))
    bench.ready(one, other)
    assert one.ready and other.ready
    pids = [pid for side in (one, other) for pid in (pid_of(side), *(child.pid for child in below(side)))]
    print(*pids, flush=True)
    while True:
        bench.turn(one, 300)
"""


@pytest.mark.parametrize(
    ("number", "within"), [(signal.SIGKILL, 15.0), (signal.SIGINT, 6.0)], ids=["killed", "interrupted"]
)
def test_a_parent_that_is_killed_or_interrupted_leaves_nothing(
    tmp_path: Path, number: signal.Signals, within: float
) -> None:
    """In a turn of one side, while the other and its workers stand still: none of either goes on, or stays."""
    paths = os.pathsep.join([str(HERE), str(HERE.parent), str(Path(hotlap.__file__).parents[1])])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths}, start_new_session=True,
    )  # fmt: skip
    assert parent.stdout is not None
    family: list[psutil.Process] = []
    try:
        family = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(family) == 4
        time.sleep(0.4)
        parent.send_signal(number)
        begun = time.monotonic()
        assert until(lambda: not any(alive(one) for one in family), within), [
            (one.pid, one.status(), one.cmdline()[:3]) for one in family if alive(one)
        ]
        parent.wait(within)
        assert time.monotonic() - begun < within
        assert parent.returncode == -number
    finally:
        for one in family:
            with contextlib.suppress(psutil.Error):
                one.kill()
        parent.kill()
        parent.communicate()


@pytest.mark.parametrize(
    ("how", "ranks", "together"),
    [("torchrun", 2, False), ("torchrun", 2, True), ("env", 1, False), ("tcp", 1, False), ("spawn", 2, True)],
)
def test_two_jobs_with_process_groups_take_turns(
    how: str, ranks: int, together: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the port at which the ranks meet stands in the script, and is the same for both."""
    monkeypatch.setattr("hotlap.experiment.side.END_S", 60.0)  # a busy machine may take longer than a tune waits
    script, torchrun = str(HERE / "scripts" / "ranks.py"), str(Path(sys.executable).with_name("torchrun"))
    words = (torchrun, "--nproc-per-node", "2", script)
    if how != "torchrun":
        words = (sys.executable, script, how, free_port())
    with bench_in(tmp_path) as bench:
        one, other = (bench.start("ranks", special=Special(together=together), command=words) for _ in range(2))
        bench.ready(one, other)
        assert one.ready and other.ready, (one.measured, other.measured)
        for side, still in ((one, other), (other, one), (one, other)):
            waiting = [len(list(rank.steps)) for rank in RunFolder(still.folder).ranks]
            first = side.gate.step
            turn = bench.turn(side, 10)
            assert turn is not None and (turn.first, turn.last) == (first, first + 11)
            assert turn.rows == 4 * ranks and turn.step_ms
            assert [len(list(rank.steps)) for rank in RunFolder(side.folder).ranks] == [turn.last] * ranks
            assert [len(list(rank.steps)) for rank in RunFolder(still.folder).ranks] == waiting
        for side in (one, other):
            losses = [tuple(step.loss for step in rank.steps) for rank in RunFolder(side.folder).ranks]
            assert len(set(losses)) == ranks, "each rank has data of its own"
        bench.end(one)
        assert bench.turn(other, 4) is not None and other.measured.ended == ""
        run = json.loads((one.folder / "run.json").read_text())
        assert run["exit_code"] == 0


def step(wall_ms: float, **more: Any) -> Step:
    return Step(step=0, time=0.0, wall_ms=wall_ms, phases=Phases(), samples=4, **more)


def test_what_a_turn_s_steps_say() -> None:
    plain = [step(10.0), step(20.0)]
    odd = [step(99.0, probe=True), step(99.0, compiles=1), step(99.0, evaluation=True)]
    assert turn_of(1, 0, 5, [[*odd, *plain]]).step_ms == pytest.approx(15.0)
    assert turn_of(1, 0, 5, [odd]).step_ms is None and turn_of(1, 0, 5, []).rows is None
    assert turn_of(1, 0, 5, [[*odd, *plain]], evaluates=True).step_ms == pytest.approx(43.0)
    slowest = turn_of(1, 0, 2, [plain, [step(40.0)], odd])
    assert slowest.step_ms == pytest.approx(40.0) and slowest.rows == 8
    device = [step(10.0, gpu_ms=30.0), step(10.0, gpu_ms=40.0)]
    assert turn_of(1, 0, 2, [device]).step_ms == pytest.approx(35.0)
    assert turn_of(1, 0, 3, [[*device, step(12.0)]]).step_ms == pytest.approx(32 / 3), "one clock for all"


def test_where_a_loop_waits_for_its_workers_a_turn_holds_a_batch_of_each(bench: Bench, sides: dict[str, Side]) -> None:
    def loop(workers: int, late_ms: float) -> Facts:
        one = LoaderFacts(
            dataset="d", iterable=False, workers=workers, asked=100, late=60, late_ms=late_ms, training=True
        )
        return Facts(pid=1, rank=0, world=1, argv=(), python="3", torch="2", loaders=(one,))

    waits = [loop(10, 30 * 60.0), loop(10, 200.0), loop(0, 0.0), None]
    assert [wave_of(one, 200.0) for one in waits] == [10, 1, 1, 1], "1% of 200 ms is little, however often"
    side = sides["still"]
    short, side.step_ms = side.step_ms, 200.0
    assert 3 <= bench.turn_steps(side) <= 4
    side.wave = 10
    assert 10 <= bench.turn_steps(side) <= 13
    side.step_ms = 1000.0
    assert 3 <= bench.turn_steps(side) <= 4, "not longer than some seconds"
    side.step_ms, side.wave = short, 1


def test_turns_are_not_always_as_long_so_that_none_goes_by_the_waves_of_loader_workers() -> None:
    lengths = {drawn(8, random.Random(seed)) for seed in range(100)}
    assert lengths == {8, 9, 10, 11} and {drawn(1, random.Random(seed)) for seed in range(20)} == {1, 2}
    waits = [0, 0, 0, 800]  # ms of the batches of four workers: one in four waits for all
    means = []
    for vary in (False, True):
        shuffle, at, told = random.Random(0), 3, []
        for _ in range(2000):
            steps = 1 + (drawn(7, shuffle) if vary else 7)
            told.append(sum(waits[(at + n) % 4] for n in range(1, steps)) / (steps - 1))
            at += steps
        means.append(sum(told) / len(told))
    assert means[0] < 120 and abs(means[1] - 200) < 10


@pytest.mark.parametrize("together", [False, True])
def test_sides_that_want_more_cores_than_there_are_start_one_after_another(tmp_path: Path, together: bool) -> None:
    """On the machine of two cores: as if it had one, which the import of torch keeps busy."""
    with bench_in(tmp_path) as bench:
        bench.cores = 1
        one, two = (bench.start(name, special=Special(together=together)) for name in ("one", "two"))
        bench.ready(one, two)
        assert [side.measured.outcome for side in (one, two)] == ["measured", "measured"]
        assert (bench.crowded, bench.crowded_steps) == (not together, together)
        assert one.stood == 0 and two.stood > 0
        assert not any(side.run.processes.stands_still for side in (one, two))
        assert bench.turn(one) is not None and bench.turn(two) is not None


def test_sides_that_find_their_cores_start_at_once(tmp_path: Path) -> None:
    with bench_in(tmp_path) as bench:
        bench.cores, bench.crowded_steps = 64, True
        sides = [bench.start(name, special=TOGETHER) for name in ("one", "two")]
        bench.ready(*sides)
        assert not bench.crowded and not bench.crowded_steps and not any(side.stood for side in sides)
