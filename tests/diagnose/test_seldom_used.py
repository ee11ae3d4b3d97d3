"""Values that each step computes and few steps use."""

import re
from pathlib import Path

import pytest

from hotlap.diagnose.sampled import with_samples
from hotlap.diagnose.seldom_used import seldom_used
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.profile import Samples, UserFrame
from made_runs import diagnosis_of

BEGIN = """
import numpy as np
EVERY = 25; ALWAYS = 1

class Meter:
    def update(self, scores):
        self.scores.append(scores)
        return self.compute()
    def compute(self):
        return roc_auc_score(np.concatenate(self.scores))

def train():
    meter = Meter()
    for step, x in enumerate(data):
        loss = model(x)
        loss.backward()
        optimizer.step()
"""
SHOWS = """
        if step % EVERY == 0:
            print(step, loss.item(), {})
"""


def sampled(tmp_path: Path, text: str, looks: int = 100) -> Samples:
    """Of a step that is mostly at the lines that end in `# here`, each called by the one before."""
    file = tmp_path / "train.py"
    file.write_text(text)
    lines = text.splitlines()

    def frame(ends: str) -> UserFrame:
        at = next(at for at, line in enumerate(lines, 1) if line.rstrip().endswith(ends))
        inner = [m for m in (re.match(r"\s*def (\w+)", line) for line in lines[:at]) if m]
        return 0, at, inner[-1][1] if inner else "<module>"

    calls = tuple(frame(f"# {n}") for n in range(9) if any(line.endswith(f"# {n}") for line in lines))
    backward, update = frame("backward()"), frame("optimizer.step()")
    paths = [
        ("other", calls, "sklearn.roc", 80.0),
        ("other", ((0, 1, "train"),), "", 20.0),
        ("backward", (backward,), "", 5.0),
        ("optimizer", (update,), "", 5.0),
    ]
    rows = tuple((phase, *path[-1], inside, ms) for phase, path, inside, ms in paths)
    return Samples(steps=3, looks=looks, files=(str(file),), lines=rows, paths=tuple(paths))


@pytest.mark.parametrize(
    ("text", "place", "instead"),
    [
        (
            BEGIN.replace("s))\n", "s))  # 1\n") + "        auc = meter.compute()  # 0" + SHOWS.format("auc"),
            "# 0",
            "compute `auc = meter.compute()` only when it is used: move it into `if step % EVERY == 0:` (line 19)",
        ),
        (  # what it is called by keeps something, and that has to be in each step
            BEGIN.replace("s))\n", "s))  # 2\n").replace("e()\n", "e()  # 1\n", 1)
            + "        auc = meter.update(x)  # 0"
            + SHOWS.format("auc"),
            "# 1",
            "compute `self.compute()` only when it is used, in `if step % EVERY == 0:` (line 19); here",
        ),
        (  # by way of another value, and of a tuple
            BEGIN + "        auc, n = roc(x), 3  # 0\n        text = f'{auc} of {n}'" + SHOWS.format("text"),
            "# 0",
            "compute `auc, n = (roc(x), 3)` only when it is used: move it into",
        ),
        (
            BEGIN.replace("return roc_auc_score", "self.auc = roc").replace("s))\n", "s))  # 2\n")
            + "        meter.update(x)  # 0"
            + SHOWS.format("meter.auc"),
            "# 2",
            "compute `roc(np.concatenate(self.scores))` only when",
        ),
        (  # the function of the loop is called by another one, under a condition
            BEGIN + "        auc = roc(x)  # 1\n    print(auc)\nif args.train:\n    train()  # 0\n",
            "# 1",
            "compute `auc = roc(x)` only once, after the loop, before line 19",
        ),
        (
            BEGIN + "        shows = not step % 50\n        auc = roc(x)  # 0\n        if shows and main:\n"
            "            log(auc)\n",
            "# 0",
            "compute `auc = roc(x)` only when it is used: move it into `if shows and main:` (line 20)",
        ),
        (
            BEGIN.replace("return roc_auc_score(np.concatenate(self.scores))", "return self.errors / 9").replace(
                "return self.compute()", "self.errors += distance(scores)  # 1"
            )
            + "        meter.update(x)  # 0"
            + SHOWS.format("meter.compute()"),
            "# 1",
            "add up only when it is shown: put `if step % EVERY == 0:` (line 19) around `self.errors +=",
        ),
        (  # of all parameters, by a list or a sum that is made anew
            BEGIN + "        norms = []\n        for p in x:\n            norms.append(p.norm())  # 0\n"
            "        norm = sum(norms)" + SHOWS.format("norm"),
            "# 0",
            "`norms.append(p.norm())` and the loop around it only when it is used: move it into",
        ),
        (
            BEGIN
            + "        norm = 0\n        for p in x:\n            norm += p.norm().item()  # 0"
            + SHOWS.format("norm"),
            "# 0",
            "compute `norm += p.norm().item()` and the loop around it only when",
        ),
        (
            "def norm_of(x):\n    total = 0\n    for p in x:\n        total += p.norm()  # 1\n    return total\n"
            + BEGIN
            + "        norm = norm_of(x)  # 0"
            + SHOWS.format("norm"),
            "# 0",
            "compute `norm = norm_of(x)` only when it is used: move it into",
        ),
        (  # a script without functions
            "import numpy\nfor step in range(9):\n    f(x).backward()\n    optimizer.step()\n    norm = 0\n"
            "    for p in x:\n        norm += p.norm().item()  # 0\n    shows = step % 9 == 0\n    if shows:\n"
            "        print(norm)\n",
            "# 0",
            "compute `norm += p.norm().item()` and the loop around it only when it is used: move it into `if shows:`",
        ),
        (  # by way of a running average, which the last step shows too
            BEGIN + "        rate = roc(x)  # 0\n        mean = rate if mean is None else 0.9 * mean + 0.1 * rate\n"
            "        if step % 50 == 0 or step == LAST:\n            print(mean)\n",
            "# 0",
            "add up only when it is shown: put `if step % 50 == 0 or step == LAST:` (line 20) around `rate = roc(x)`",
        ),
        (
            BEGIN + "        auc = roc(x)  # 0\n        total += auc\n" + SHOWS.format("total / step"),
            "# 0",
            "add up only when it is shown: put `if step % EVERY == 0:` (line 21) around `auc = roc(x)`",
        ),
        (  # what is returned beside the loss
            BEGIN.replace("loss = model(x)", "loss, auc = forward(x)  # 0").replace(
                "def train", "def forward(x):\n    auc = roc(x)  # 1\n    return model(x), auc\n\ndef train"
            )
            + SHOWS.format("auc"),
            "# 1",
            "compute `roc(x)` only when",
        ),
    ],
)
def test_it_is_told_with_the_branch_that_uses_it(text: str, place: str, instead: str, tmp_path: Path) -> None:
    said = sampled(tmp_path, text)
    found = seldom_used(said)
    assert found is not None
    at = next(at for at, line in enumerate(text.splitlines(), 1) if line.endswith(place))
    assert found.where.line == at and instead in found.cause.instead
    assert found.part == pytest.approx(0.8) and sum(row[5] for row in found.rest.lines) == pytest.approx(30.0)


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + "        auc = roc(x)  # 0\n        total += auc\n" + SHOWS.format("auc"),  # used in each step
        BEGIN + "        auc = roc(x)  # 0\n        if step % ALWAYS == 0:\n            print(auc)\n",
        BEGIN + "        auc = roc(x)  # 0\n        if step % 2 == 0:\n            print(auc)\n",
        BEGIN + "        auc = roc(x)  # 0\n        if auc > 0.9:\n            print(auc)\n",
        BEGIN + "        if step % 25 == 0:\n            auc = roc(x)  # 0\n            print(auc)\n",
        BEGIN + "        auc = roc(x)  # 0\n        if step % 50 == 0 or kind == LAST:\n            print(auc)\n",
        BEGIN
        + "        auc = roc(x)  # 0\n        mean = 0.9 * mean + 0.1 * auc\n        clip(mean)"
        + SHOWS.format("mean"),
        BEGIN
        + "        rows = roc(x)  # 0\n        sums += rows\n        if step % 4 == 0:\n            apply(sums)\n",
        BEGIN + "        ema = mix(ema, x)  # 0" + SHOWS.format("ema"),  # goes on from the last one
        BEGIN + "        norm = clip_grad_norm_(x)  # 0" + SHOWS.format("norm"),
        BEGIN + "        mean = accelerator.gather(x).mean()  # 0" + SHOWS.format("mean"),  # by all ranks
        BEGIN
        + "        if loss < best:\n            best = loss\n            kept = copy(model)  # 0\n    save(kept)\n",
        BEGIN + "        total += roc(x)  # 0\n    print(total)\n",  # of all steps
        BEGIN + "        grads += gradients(x)  # 0\n        if step % 4 == 0:\n            apply(grads)\n",
        BEGIN + "        total += loss.item()  # 0" + SHOWS.format("total"),
        BEGIN + "        log.append(roc(x))  # 0" + SHOWS.format("log[-1]"),
        BEGIN + "        out['auc'] = roc(x)  # 0" + SHOWS.format("out"),
        BEGIN + "        out = {}\n        out['auc'] = roc(x)  # 0\n        use(out)\n" + SHOWS.format("out"),
        BEGIN + "        norm = 0\n        norm += roc(x)  # 0\n        clip(norm)\n" + SHOWS.format("norm"),
        BEGIN + "        for row in x:\n            auc = roc(row)  # 0\n        use(auc)\n",  # of the step, not of all
        BEGIN.replace("return roc_auc_score(", "self.auc = roc(").replace("s))\n", "s))  # 1\n")
        + "        meter.compute()  # 0\n        use(meter.auc)\n",
        BEGIN + "        auc = roc(x)  # 0\n        def show():\n            return auc\n        show()\n",
        BEGIN + "        auc = roc(x)  # 0\n",  # nothing is known of what it is for
    ],
)
def test_what_may_be_used_in_each_step_is_not(text: str, tmp_path: Path) -> None:
    assert seldom_used(sampled(tmp_path, text)) is None


def test_a_function_that_runs_the_model_or_waits_for_ranks_is_not(tmp_path: Path) -> None:
    """`loss = train_step(x)`, whose loss is shown now and then."""
    text = BEGIN.replace("loss = model(x)", "loss = train_step(x)  # 0").replace("        loss.b", "        x.b")
    said = sampled(tmp_path, text + SHOWS.format("loss"))
    assert seldom_used(said) is not None
    at = said.paths[0][1]
    for row in ("forward", at, "", 60.0), ("other", at, "torch.all_reduce", 9.0):  # a branch may be that of one rank
        assert seldom_used(Samples(looks=100, files=said.files, lines=said.lines, paths=(*said.paths, row))) is None


@pytest.mark.parametrize(("looks", "told"), [(100, True), (3, False)])
def test_it_takes_its_part_of_the_loops_own_code(looks: int, told: bool, tmp_path: Path) -> None:
    said = sampled(tmp_path, BEGIN + "        auc = roc_auc_score(x)  # 0" + SHOWS.format("auc"), looks)
    one = Finding(id="host-code", bound="unknown", share=0.5, where=Place(file="train.py", line=1), evidence="x")
    before = diagnosis_of(bound="unknown", step_ms=9.0, findings=(one,))
    first, *left = with_samples(before, said).findings
    assert first.named is told
    if told:
        assert first.title == "a value is computed in each step and used only in some"
        assert first.evidence == "x; 80% of it under such lines, used only `if step % EVERY == 0:` (line 19)"
        assert (first.share, first.cost_ms) == pytest.approx((0.4, 3.6)) and left[0].share == pytest.approx(0.1)


@pytest.mark.parametrize(("steps", "told"), [("    optimizer.step()\n", False), ("", True)])
def test_a_loop_over_rows_is_not_that_of_the_steps(steps: str, told: bool, tmp_path: Path) -> None:
    """Gradients of each row, say: what stands after their loop is used in each step."""
    text = (
        f"def fit(x):\n    for row in x:\n        f(row).backward()\n        norm = roc(row)\n    use(norm)\n{steps}"
        "for x in data:\n    fit(x)\n    optimizer.step()\n"
    )
    if told:  # the loop that updates is this one
        text = text.replace("backward()\n", "backward()\n        optimizer.step()\n")
    file = tmp_path / "train.py"
    file.write_text(text)
    lines = text.splitlines()
    main = 0, lines.index("    fit(x)") + 1, "<module>"
    own, backward = (
        (0, lines.index(one) + 1, "fit") for one in ("        norm = roc(row)", "        f(row).backward()")
    )
    paths = (("other", (main, own), "", 9.0), ("backward", (main, backward), "", 5.0))
    rows = tuple((phase, *path[-1], inside, ms) for phase, path, inside, ms in paths)
    assert (seldom_used(Samples(looks=99, files=(str(file),), lines=rows, paths=paths)) is not None) is told
