"""Predictions by the replay of a trace: whose levers it knows, and how they compose."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from machine import FakeLever, Tune, Uses, factors

from hotlap.levers import all_levers
from hotlap.levers._base import Context, Settings
from hotlap.records.run import Lever
from hotlap.trace.replay import CHANGES
from hotlap.tune import candidates
from hotlap.tune.search import Search
from hotlap.tune.whatif import WhatIf, read_whatif

sys.path.insert(0, str(Path(__file__).parents[1] / "levers"))
from contexts import context

DATA = Path(__file__).parents[1] / "traces" / "data"
FP32 = DATA / "fp32-step.json.gz"


class Known:
    """As much of a search's state as predictions need."""

    class objective:
        memory = False

    levers = all_levers()
    best = SimpleNamespace(levers=[])

    def __init__(self, whatif: "WhatIf | Told | None") -> None:
        self.whatif = whatif


@pytest.fixture(scope="module")
def fp32(tmp_path_factory: pytest.TempPathFactory) -> WhatIf:
    folder = tmp_path_factory.mktemp("run")
    (folder / "rank-0").mkdir()
    shutil.copy(FP32, folder / "rank-0" / "trace.json.gz")
    found = read_whatif(folder, None)
    assert found is not None
    return found


def gain(whatif: "WhatIf | Told | None", name: str, *others: str) -> float | None:
    uses = [Lever(name=other) for other in others]
    return candidates.gain(Known(whatif), uses, Lever(name=name))  # type: ignore[arg-type]


def test_levers_name_changes_that_the_replay_has() -> None:
    known = {name for name, _, _ in CHANGES}
    named = {
        lever.scenario(settings)
        for lever in all_levers().values()
        for cuda in (False, True)
        for bound in ("compute", "launch")
        for settings in lever.variants(context(cuda, bound=bound))
    }
    assert named - {None} <= known and {"bf16_matmuls", "free_input", "no_launch_cost"} <= named


class Told:
    """A replay whose answers the test gives, by what is removed."""

    before_ns = 100e6

    def __init__(self, **steps: float) -> None:
        self.steps = {frozenset(names.split("__")): ms for names, ms in steps.items()}

    def step_ms(self, scenarios: frozenset[str]) -> float | None:
        return self.steps.get(scenarios)


def test_a_replayed_step_is_shorter_without_its_causes(fp32: WhatIf) -> None:
    fused, loader = gain(fp32, "fused-optimizer"), gain(fp32, "loader-workers")
    assert fused is not None and loader is not None and 1.05 > fused > loader > 1.0
    both = fp32.step_ms(frozenset({"fused_optimizer", "free_input"}))
    assert both is not None and both < fp32.before_ns / 1e6 / fused


def test_beside_a_lever_that_removes_the_same_cause_little_is_left() -> None:
    told = Told(tf32_matmuls=80.0, bf16_matmuls=50.0, tf32_matmuls__bf16_matmuls=50.0)
    assert gain(told, "tf32") == pytest.approx(1.25) and gain(told, "bf16-autocast") == pytest.approx(2.0)
    assert gain(told, "tf32", "bf16-autocast") == pytest.approx(1.0)
    assert gain(told, "bf16-autocast", "tf32") == pytest.approx(1.6)
    assert gain(told, "bf16-autocast", "channels-last") == pytest.approx(2.0), "what is not known changes nothing"


def test_what_the_replay_knows_nothing_of_is_said_by_the_share(fp32: WhatIf) -> None:
    assert gain(fp32, "channels-last") is None and gain(None, "bf16-autocast") is None
    lever = all_levers()["channels-last"]
    predicted = candidates.predict(Known(fp32), lever, context(True))  # type: ignore[arg-type]
    assert predicted.by == "share" and predicted.predicted == pytest.approx(1 / (1 - lever.share(context(True))))
    replayed = candidates.predict(Known(fp32), all_levers()["fused-optimizer"], context(True))  # type: ignore[arg-type]
    assert replayed.by == "replay" and replayed.predicted == gain(fp32, "fused-optimizer")


def test_a_replay_of_other_steps_than_the_incumbents_is_not_believed_against_what_was_measured() -> None:
    """With a compiler a GAN's step on an H100 waited for launches, of which there was nothing to see before."""
    lever, where = all_levers()["graph-training"], context(True, bound="launch")
    for best, by, ratio in ((["tf32"], "replay", 100 / 99), (["tf32", "channels-last"], "share", 1.74)):
        known = Known(Told(no_launch_cost=99.0, tf32_matmuls=90.0))
        known.best = SimpleNamespace(levers=[Lever(name=name) for name in best])
        predicted = candidates.predict(known, lever, where)  # type: ignore[arg-type]
        assert predicted.by == by and predicted.predicted == pytest.approx(ratio, abs=0.01)


@pytest.mark.parametrize(("tf32_ms", "tried"), [(3.2, "graphs + tf32"), (3.6, "graphs + bf16")])
def test_of_two_for_one_cause_the_one_is_tried_that_wins_more_beside_the_others(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, tf32_ms: float, tried: str
) -> None:
    """While the device waits for launches neither wins anything. A small GPT on an H200 was slower in bfloat16."""

    class Does(FakeLever):
        def scenario(self, settings: Settings) -> str | None:
            return self.name

        def share(self, context: Context) -> float:
            return 0.05 if self.name == "graphs" or not {"tf32", "bf16"} & context.active.keys() else 0.01

    replay = Told(
        graphs=4.0, bf16=99.0, tf32=100.0, graphs__bf16=3.5, graphs__tf32=tf32_ms,
        graphs__bf16__tf32=min(3.5, tf32_ms), bf16__tf32=99.0,
    )  # fmt: skip
    monkeypatch.setattr(Search, "_read_trace", lambda self, trial: setattr(self.state, "whatif", replay))
    levers = [Does(name, 0.0) for name in ("bf16", "graphs", "tf32")]
    _, machine = tune(levers, factors(graphs=0.04, bf16=0.9, tf32=0.9), device="cuda")
    assert machine.tries()[0] == tried


@pytest.mark.parametrize(("broken", "said"), [("none", (4.0, "replay")), ("graphs", (2.0, "share"))])
def test_a_prediction_is_of_the_settings_that_are_kept(
    tune: Tune, monkeypatch: pytest.MonkeyPatch, broken: str, said: tuple[float, str]
) -> None:
    """The replay knows what CUDA graphs would win; it knows nothing of the mode that is kept instead."""

    class Modes(FakeLever):
        def scenario(self, settings: Settings) -> str | None:
            return "no_launch_cost" if settings["mode"] == "graphs" else None

    replay = Told(no_launch_cost=25.0)
    monkeypatch.setattr(Search, "_read_trace", lambda self, trial: setattr(self.state, "whatif", replay))
    lever = Modes("a", 0.5, ({"mode": "graphs"}, {"mode": "plain"}))

    def outcome(uses: Uses) -> tuple[str, str]:
        return ("crashed", "x") if uses.get("a") == {"mode": broken} else ("measured", "")

    found, _ = tune([lever], factors(a=0.5), device="cuda", outcome=outcome)
    assert (found.kept[0].predicted, found.kept[0].predicted_by) == said


def test_a_trace_of_the_cpu_and_what_is_no_trace_predict_nothing(tmp_path: Path) -> None:
    assert read_whatif(tmp_path, 10.0) is None
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "trace.json.gz").write_bytes(b"\x1f\x8bbroken")
    assert read_whatif(tmp_path, 10.0) is None
    shutil.copy(DATA / "cpu.json", tmp_path / "rank-0" / "trace.json.gz")
    assert read_whatif(tmp_path, 10.0) is None


def test_steps_that_are_not_the_runs_typical_ones_predict_nothing(fp32: WhatIf, tmp_path: Path) -> None:
    (tmp_path / "rank-0").mkdir()
    shutil.copy(FP32, tmp_path / "rank-0" / "trace.json.gz")
    recorded = fp32.before_ns / 1e6
    assert read_whatif(tmp_path, 0.9 * recorded) is not None
    assert read_whatif(tmp_path, 0.25 * recorded) is None
    assert read_whatif(tmp_path, 2.0 * recorded) is None


def test_steps_that_do_not_wait_for_data_as_the_run_does_predict_nothing(fp32: WhatIf, tmp_path: Path) -> None:
    """While a profiler starts, workers fill their queues: the steps that it then records find their batches ready."""
    rank = tmp_path / "rank-0"
    rank.mkdir()
    shutil.copy(FP32, rank / "trace.json.gz")
    recorded = fp32.before_ns / 1e6
    (rank / "profile.json").write_text('{"steps": 1, "wanted": 1, "first_step": 7}')
    line = '{{"step": {}, "time": 0.0, "wall_ms": {}, "phases": {{"data": {}}}}}\n'
    (rank / "steps.jsonl").write_text(line.format(6, recorded, 0.6 * recorded) + line.format(7, recorded, 0.1))
    assert read_whatif(tmp_path, recorded, 0.6 * recorded) is None
    assert read_whatif(tmp_path, recorded, 0.05 * recorded) is not None
    assert read_whatif(tmp_path, recorded) is not None
