"""Runs small training scripts as tune does, in processes of their own, and judges them with real twins.

Also used by `benchmarks/parity_rates.py`. A run is made once: its folder is the cache, so that tests of several
pytest workers share baselines and twins.
"""

import atexit
import fcntl
import hashlib
import json
import os
import runpy
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hotlap.experiment.evidence import Evidence, read_evidence
from hotlap.experiment.judge import NUDGES
from hotlap.experiment.parity import Rule, Twins, judge
from hotlap.experiment.side import PROBE_STEPS
from hotlap.launch.environment import environment
from hotlap.launch.run import BackgroundRun
from hotlap.levers import _pinned_draws, all_levers, variables_of
from hotlap.records.run import Lever
from hotlap.records.tune import Parity
from hotlap.runs.folder import RankFolder
from hotlap.runs.plan import RunPlan

if TYPE_CHECKING:
    from agent.harness import Runner

HERE = Path(__file__).resolve().parent
PLANTED = {"PYTHONPATH": str(HERE / "planted")}
DOOR = "exec(open({0!r}).read(), {{'__file__': {0!r}}})".format(str(HERE / "planted" / "sitecustomize.py"))
"""What Python runs by itself where that is on its path."""
STEPS = 40
REDRAW = 4049
TIMEOUT_S = 200.0


@dataclass(frozen=True)
class Script:
    """A script of `scripts/` and its arguments; DATA stands for the file of digits."""

    name: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A lever on a script, as it declares itself. honest: whether parity must let it pass."""

    name: str
    script: Script
    levers: tuple[Lever, ...]
    rule: Rule
    honest: bool
    steps: int = STEPS


def planted(what: str, **settings: Any) -> Lever:
    """A lever of `planted/lever.py`."""
    return Lever(name="planted", settings={"what": what, **settings})


def real(name: str, **settings: Any) -> Lever:
    """A lever of hotlap's."""
    return Lever(name=name, settings=settings)


def rule_of(*levers: Lever) -> Rule:
    """As tune judges hotlap's own levers."""
    known = [all_levers()[lever.name] for lever in levers]
    return Rule(
        any(lever.risk != "exact" for lever in known),
        sum(lever.tolerance for lever in known),
        any(lever.redraws for lever in known),
    )


EXACT = Rule(numeric=False, tolerance=0.0, redraws=False)
NUMERIC = Rule(numeric=True, tolerance=0.02, redraws=False)
"""As bf16-autocast declares itself."""
REDRAWS = Rule(numeric=False, tolerance=0.0, redraws=True)
"""As loader-workers declares itself."""


def digits(*arguments: str) -> Script:
    """The classifier of digits."""
    return Script("digits.py", ("DATA", *arguments))


@dataclass
class Bench:
    """Runs and remembers, under a folder."""

    folder: Path
    forking: bool = False
    """Fork the runs from this process, which saves them the import of torch: for benchmarks over many seeds."""
    runner: "Runner | None" = None
    """Forks the runs from its process, but for those of levers that need variables before torch is imported."""
    made: list[Path] = field(default_factory=list)

    def evidence(
        self, script: Script, seed: int, levers: tuple[Lever, ...] = (), steps: int = STEPS, **special: Any
    ) -> Evidence | None:
        """What a run computed; None where it could not be made or a lever not put in."""
        folder = self._run(script, seed, levers, steps, special)
        ended = json.loads((folder / "run.json").read_bytes())
        broken = ended["exit_code"] != 0 or any(RankFolder(folder / "rank-0").problems)
        return None if broken else read_evidence(folder)

    def judge(self, case: Case, seed: int) -> Parity:
        """As `tune.search` judges: base and again are two runs of the bare command."""
        base, again = (self.evidence(case.script, seed, steps=case.steps, copy=copy) for copy in (0, 1))
        trial = self.evidence(case.script, seed, case.levers, case.steps)
        assert base is not None and again is not None, "the bare command fails"
        assert trial is not None, f"{case.name} could not be run: see {self.made[-1]}"

        def twin(**special: Any) -> Callable[[], Evidence | None]:
            return lambda: self.evidence(case.script, seed, steps=case.steps, **special)

        def pinned() -> tuple[Evidence, Evidence] | None:
            pin = Lever(name=_pinned_draws.NAME)
            one = self.evidence(case.script, seed, (pin,), case.steps)
            two = self.evidence(case.script, seed, (pin, *case.levers), case.steps)
            return None if one is None or two is None else (one, two)

        twins = Twins(
            [twin(nudge=size) for size in NUDGES.values()],
            [twin(redraw=seed + REDRAW), twin(redraw=seed + 2 * REDRAW)],
            pinned,
        )
        same = tuple(_same_random(lever) for lever in case.levers)
        if not base.draws or same == case.levers:
            return judge(case.rule, base, again, trial, twins)
        parity = judge(case.rule, base, again, trial, Twins([], []))
        if parity.ok or parity.level == "refused":
            return parity
        again_trial = self.evidence(case.script, seed, same, case.steps)
        assert again_trial is not None
        return judge(case.rule, base, again, again_trial, twins)

    def _run(self, script: Script, seed: int, levers: tuple[Lever, ...], steps: int, special: dict[str, Any]) -> Path:
        words = repr((script, seed, [(lever.name, lever.settings) for lever in levers], steps, sorted(special.items())))
        folder = self.folder / hashlib.blake2b(words.encode(), digest_size=8).hexdigest()
        self.made.append(folder)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "done").exists():
                self._make(folder, script, seed, levers, steps, special)
                (folder / "done").touch()
        return folder

    def _make(
        self, folder: Path, script: Script, seed: int, levers: tuple[Lever, ...], steps: int, special: dict[str, Any]
    ) -> None:
        arguments = [str(data_file(self.folder)) if word == "DATA" else word for word in script.arguments]
        own = [lever for lever in levers if lever.name != "planted"]
        request = RunPlan(
            command=(sys.executable, str(HERE / "scripts" / script.name), *arguments),
            folder=folder,
            environment=environment(HERE),
            steps=steps,
            least_steps=steps,
            levers=levers,
            variables={**PLANTED, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", **variables_of(own)},
            seed=seed,
            probe_steps=PROBE_STEPS,
            nudge=special.get("nudge", 0.0),
            redraw=special.get("redraw"),
            cwd=folder,
        )
        if self.forking:
            run_forked(request)
        elif self.runner is not None and not variables_of(own):
            run_by(self.runner, request)
        else:
            command, deadline = BackgroundRun(request), time.monotonic() + TIMEOUT_S
            while not command.over() and time.monotonic() < deadline:
                time.sleep(0.05)
            command.end()


def run_by(runner: "Runner", request: RunPlan) -> None:
    """Run a Python command in a fork of a process that has imported torch and nothing of hotlap or of the tests."""
    session = request.folder.resolve() / "session.json"
    request.session().write(session)
    ran = runner.fork(
        request.command[1:], request.folder / "output.txt", str(session), DOOR, request.cwd,
    )  # fmt: skip
    (request.folder / "run.json").write_text(json.dumps({"exit_code": ran.code}))


def run_forked(request: RunPlan) -> None:
    """Run a Python command in a fork of this process that starts the agent as `import torch` would have done."""
    import torch
    import torch._dynamo  # which an optimizer imports when it is made
    import torch.utils.data

    torch.set_num_threads(1)
    request.session().write(request.folder / "session.json")
    pid = os.fork()
    if pid == 0:
        _become(request)
    status = os.waitpid(pid, 0)[1]
    (request.folder / "run.json").write_text(json.dumps({"exit_code": os.waitstatus_to_exitcode(status)}))


def _become(request: RunPlan) -> NoReturn:
    """In the child: the command itself."""
    code = 1
    try:
        output = os.open(request.folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(request.cwd)
        os.environ["HOTLAP_SESSION"] = str(request.folder.resolve() / "session.json")
        exec(DOOR)
        sys.argv = list(request.command[1:])
        from hotlap.agent.start import start

        start()
        runpy.run_path(sys.argv[0], run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - as the interpreter's own top level
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)


def _same_random(lever: Lever) -> Lever:
    known = all_levers().get(lever.name)
    settings = known.for_parity(lever.settings) if known else None
    return lever if settings is None else Lever(name=lever.name, settings=settings)


def data_file(folder: Path) -> Path:
    """scikit-learn's digits as an .npz, which a script loads faster than scikit-learn itself."""
    path = folder / "digits.npz"
    with (folder / "digits.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            import numpy as np
            from sklearn.datasets import load_digits

            data = load_digits()
            with path.with_suffix(".part").open("wb") as file:
                np.savez(file, images=data.images, labels=data.target)
            path.with_suffix(".part").replace(path)
    return path


WORKERS = real("loader-workers", workers=2, prefetch=2, pin_memory=False, persistent=True)
THREADS = real("cpu-threads", threads=2)
FUSED, LAST, BF16 = real("fused-optimizer"), real("channels-last"), real("bf16-autocast")
COMPILE = real("compile", mode="default")
MLP, CNN = digits(), digits("--cnn")
DROPOUT = digits("--dropout", "0.3")
TRANSFORM = digits("--cnn", "--transform")
TRANSFORM_DROPOUT = digits("--transform", "--dropout", "0.2")
ADAM = digits("--adam")
ADAM_DROPOUT = digits("--adam", "--dropout", "0.2")
NORM = digits("--adam", "--norm")
"""Two of its biases have no effect, so Adam makes of their gradients' rounding an update as large as any."""
STILL = digits("--lr", "1e-5")
"""Its loss hardly moves within a trial."""
SHORT = digits("--rows", "320", "--dropout", "0.2")
"""Ten steps an epoch."""
NOISY = digits("--noise", "1e-6")
CHARS, CHARS_PLAIN = Script("chars.py"), Script("chars.py", ("0",))
GAN = Script("gan.py")
LATE = 32
"""Steps after which late frauds begin: the last third of a trial."""


def _fraud(name: str, script: Script, rule: Rule, what: str, **settings: Any) -> Case:
    return Case(name, script, (planted(what, **settings),), rule, honest=False)


def _both(name: str, what: str, **settings: Any) -> Case:
    """A fraud that hides behind other random draws, which loader-workers is allowed."""
    levers = (WORKERS, planted(what, **settings))
    return Case(name, TRANSFORM, levers, REDRAWS, honest=False)


def _honest(name: str, script: Script, rule: Rule, *levers: Lever) -> Case:
    return Case(name, script, levers, rule, honest=True)


FRAUDS = [
    _fraud("skips every other step (SGD)", MLP, NUMERIC, "skips-steps"),
    _fraud("skips every other step (Adam, characters)", CHARS, NUMERIC, "skips-steps"),
    _fraud("skips every other step (GAN)", GAN, NUMERIC, "skips-steps"),
    _fraud("every other step without gradients (SGD)", MLP, NUMERIC, "idle-steps"),
    _fraud("every other step without gradients (Adam)", ADAM, NUMERIC, "idle-steps"),
    _fraud("every other step without gradients (GAN)", GAN, NUMERIC, "idle-steps"),
    _fraud("stops learning after ten steps", CNN, NUMERIC, "idle-steps", after=10),
    _fraud("drops a tenth of the batches", MLP, EXACT, "drops-batches"),
    _fraud("drops a tenth of the batches (said to redraw)", TRANSFORM, REDRAWS, "drops-batches"),
    _fraud("drops a tenth of the batches, from the tenth (numeric)", MLP, NUMERIC, "drops-batches", at=0),
    _fraud("drops a tenth of the batches, from the tenth (redraws)", TRANSFORM, REDRAWS, "drops-batches", at=0),
    _fraud("shuffles labels", MLP, NUMERIC, "shuffles-labels"),
    _fraud("shuffles labels (redraws)", TRANSFORM, REDRAWS, "shuffles-labels"),
    _fraud("shuffles labels late (redraws)", TRANSFORM, REDRAWS, "shuffles-labels", after=LATE),
    _fraud("repeats the first batches", MLP, NUMERIC, "repeats-batches"),
    _fraud("repeats the first batches (redraws)", TRANSFORM, REDRAWS, "repeats-batches"),
    _both("drops a tenth of the batches, and workers", "drops-batches"),
    _both("drops a tenth of the batches, from the tenth, and workers", "drops-batches", at=0),
    _both("shuffles labels late, and workers", "shuffles-labels", after=LATE),
    _both("repeats the first batches, and workers", "repeats-batches"),
    _both("learning rate × 0.9, and workers", "smaller-rate"),
    _both("skips every other step, and workers", "skips-steps"),
    _fraud("random transforms gone (redraws)", TRANSFORM, REDRAWS, "no-transform"),
    _fraud("gradients × 1.05 (SGD)", MLP, NUMERIC, "scales-gradients"),
    _fraud("gradients × 1.05 (CNN)", CNN, NUMERIC, "scales-gradients"),
    _fraud("gradients × 1.05 (Adam)", ADAM, NUMERIC, "scales-gradients"),
    _fraud("learning rate × 0.9 (SGD)", CNN, NUMERIC, "smaller-rate"),
    _fraud("learning rate × 0.9 (AdamW, characters)", CHARS, NUMERIC, "smaller-rate"),
    _fraud("every other step without gradients (loss still)", STILL, NUMERIC, "idle-steps"),
    _fraud("skips every other step (loss still)", STILL, NUMERIC, "skips-steps"),
    _fraud("learning rate × 0.9 (loss still)", STILL, NUMERIC, "smaller-rate"),
    _fraud("drops a tenth of the batches, from the tenth (loss still)", STILL, NUMERIC, "drops-batches", at=0),
    _fraud("dropout off", DROPOUT, NUMERIC, "no-dropout"),
    _fraud("dropout off (redraws)", TRANSFORM_DROPOUT, REDRAWS, "no-dropout"),
    _fraud("dropout off (characters)", CHARS, NUMERIC, "no-dropout"),
    _fraud("half the dropout", DROPOUT, NUMERIC, "no-dropout", by=0.5),
    _fraud("NaN late", MLP, NUMERIC, "nan-late", after=LATE),
    _fraud("NaN late (GAN)", GAN, NUMERIC, "nan-late", after=3 * LATE),
    _fraud("a GAN whose logits are coarse", GAN, NUMERIC, "coarse", step=4.0),
]
HONEST = [
    _honest("loader-workers", MLP, rule_of(WORKERS), WORKERS),
    _honest("loader-workers (short epochs, dropout)", SHORT, rule_of(WORKERS), WORKERS),
    _honest("loader-workers (random transforms)", TRANSFORM, rule_of(WORKERS), WORKERS),
    _honest("loader-workers (random transforms, dropout)", TRANSFORM_DROPOUT, rule_of(WORKERS), WORKERS),
    _honest("other draws (random transforms)", TRANSFORM, REDRAWS, planted("other-draws")),
    _honest("other draws (random transforms, dropout)", TRANSFORM_DROPOUT, REDRAWS, planted("other-draws")),
    _honest("cpu-threads", CNN, rule_of(THREADS), THREADS),
    _honest("cpu-threads (characters)", CHARS, rule_of(THREADS), THREADS),
    _honest("fused-optimizer (SGD)", MLP, rule_of(FUSED), FUSED),
    _honest("fused-optimizer (Adam)", ADAM, rule_of(FUSED), FUSED),
    _honest("fused-optimizer (AdamW, characters)", CHARS, rule_of(FUSED), FUSED),
    _honest("fused-optimizer (GAN)", GAN, rule_of(FUSED), FUSED),
    _honest("channels-last", CNN, rule_of(LAST), LAST),
    _honest("bf16-autocast", CNN, rule_of(BF16), BF16),
    _honest("bf16-autocast (dropout)", DROPOUT, rule_of(BF16), BF16),
    _honest("bf16-autocast (Adam)", ADAM, rule_of(BF16), BF16),
    _honest("bf16-autocast (characters)", CHARS, rule_of(BF16), BF16),
    _honest("bf16-autocast (GAN)", GAN, rule_of(BF16), BF16),
    _honest("bf16-autocast + loader-workers (random transforms)", TRANSFORM, rule_of(BF16, WORKERS), BF16, WORKERS),
    _honest("float32 rounding", MLP, NUMERIC, planted("rounding")),
    _honest("float32 rounding (GAN)", GAN, NUMERIC, planted("rounding")),
    _honest("bfloat16 rounding", ADAM_DROPOUT, NUMERIC, planted("rounding", bits=8)),
    _honest("nothing (noisy command)", NOISY, EXACT, planted("nothing")),
    _honest("fused-optimizer (noisy command)", NOISY, rule_of(FUSED), FUSED),
]
LIMITS = [
    _fraud("stops learning after ten steps (loss still)", STILL, NUMERIC, "idle-steps", after=10),
]
"""Frauds that no evidence of a trial shows: the loss does not move, and updates are compared in the first steps."""
MAPS = digits("--cnn", "--dropout", "0.3", "--early")
"""Dropout of feature maps, whose masks are drawn in the order in which these lie in memory."""
DRAWS = [
    _honest("channels-last (dropout)", MAPS, rule_of(LAST), LAST),
    _honest("channels-last + bf16-autocast (dropout)", MAPS, rule_of(LAST, BF16), LAST, BF16),
    Case("dropout off, and channels-last", MAPS, (LAST, planted("no-dropout")), rule_of(LAST), honest=False),
    Case(
        "half the dropout, and channels-last", MAPS, (LAST, planted("no-dropout", by=0.5)), rule_of(LAST), honest=False
    ),
]
CLIPPED, CLIPPED_ADAM = digits("--clip", "0.1"), digits("--adam", "--clip", "0.1")
"""Gradients before the clip are ten times as large."""
CLIPS = [
    _fraud("gradients × 1.05 before they are clipped (SGD)", CLIPPED, NUMERIC, "scales-backward"),
    _fraud("gradients × 1.05 before they are clipped (Adam)", CLIPPED_ADAM, NUMERIC, "scales-backward"),
    _fraud("clipping off (Adam)", CLIPPED_ADAM, NUMERIC, "no-clipping"),
    _honest("fused-optimizer (clipped)", CLIPPED, rule_of(FUSED), FUSED),
    _honest("bf16-autocast (clipped)", CLIPPED_ADAM, rule_of(BF16), BF16),
]
NORMS = [
    _honest("bf16-autocast (Adam, biases without effect)", NORM, rule_of(BF16), BF16),
    _fraud("learns the opposite beside biases without effect", NORM, NUMERIC, "turns-norms"),
    _fraud("learning rate × 0.9 (biases without effect)", NORM, NUMERIC, "smaller-rate"),
    _fraud("every other step without gradients (biases without effect)", NORM, NUMERIC, "idle-steps"),
]
COMPILED = [_honest("compile", CNN, rule_of(COMPILE), COMPILE)]
"""Takes half a minute."""
