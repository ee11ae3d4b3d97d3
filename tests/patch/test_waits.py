"""Lines at which a run waited: what each rewrite makes of them, and what it leaves as it is."""

from collections.abc import Callable
from pathlib import Path

import pytest
from waiting import Rewritten

HEAD = """\
import logging
import statistics
import time
import numpy as np
import torch
import torch.nn.functional as F
from somewhere import score
from tqdm import tqdm
logger = logging.getLogger(__name__)
"""
Rewriter = Callable[..., Rewritten]


@pytest.fixture
def rewritten(tmp_path: Path) -> Rewriter:
    """Rewrite the marked lines of a script."""
    return lambda text: Rewritten(tmp_path, text)


def training(
    *turn: str, first: str = "pass", last: str = "pass", over: str = "step, (x, y) in enumerate(loader)"
) -> str:
    """A script whose loop does these things behind its update."""
    body = "".join(f"        {line}\n" for line in turn)
    return (
        f"{HEAD}\ndef main(model, loader, optimizer, args):\n    {first}\n    for {over}:\n"
        f"        out = model(x)\n        loss = F.cross_entropy(out, y)\n        loss.backward()\n"
        f"        optimizer.step()\n{body}    {last}\n"
    )


ITEM = "  # waits: item"
ADD = f"total += loss.item(){ITEM}"
SUMMED = "total += loss.detach().double()"


# running totals


@pytest.mark.parametrize(
    ("first", "turn", "last", "came"),
    [
        ("total = 0.0", ADD, "print(total / len(loader))", [SUMMED, "print(float(total) / len(loader))"]),
        ("total = 0", ADD, "return total / len(loader), 1", [SUMMED, "return float(total) / len(loader), 1"]),
        ("n, total = 0, 0.0", ADD, "print('%.3f' % total)", [SUMMED, "print('%.3f' % float(total))"]),
        ("total: float = 0.0", ADD, "json.dump({'total': total}, f)",
         [SUMMED, "json.dump({'total': float(total)}, f)"]),
        ("total = 0.0", f"total += float(loss) * x.size(0){ITEM}", "return total",
         ["total += loss.detach().double() * x.size(0)", "return float(total)"]),
        ("total = 0.0", f"total = 0.9 * total + 0.1 * loss.detach().cpu().item(){ITEM}", "return total",
         ["total = 0.9 * total + 0.1 * loss.detach().double()", "return float(total)"]),
        ("total = 0.0", f"total += (loss / 2).item(){ITEM}", "pass", ["total += (loss / 2).detach().double()"]),
        ("total = 0.0", f"total += float(loss + 1){ITEM}", "pass", ["total += (loss + 1).detach().double()"]),
        ("right = 0", f"right += (out.argmax(1) == y).sum().item(){ITEM}", "return right",
         ["right += (out.argmax(1) == y).sum()", "return int(right)"]),
        ("right = 0", f"right += out.argmax(1).eq(y).sum().item(){ITEM}", "return right / 9",
         ["right += out.argmax(1).eq(y).sum()", "return int(right) / 9"]),
        ("right = 0.0", f"right += (out.argmax(1) == y).sum().item(){ITEM}", "return right",
         ["right += (out.argmax(1) == y).sum().detach().double()", "return float(right)"]),
        ("total = 0.0", ADD, "total /= len(loader)", [SUMMED]),
        ("total = 0.0", "total += loss.cpu().item()  # waits: cpu", "return total", [SUMMED, "return float(total)"]),
    ],
)  # fmt: skip
def test_totals_add_up_on_the_device(rewritten: Rewriter, first: str, turn: str, last: str, came: list[str]) -> None:
    found = rewritten(training(turn, first=first, last=last))
    assert found.one.written, found.one.why
    assert found.lines[1] == came
    assert not found.one.review


def test_a_total_that_is_read_in_some_steps_is_read_there(rewritten: Rewriter) -> None:
    found = rewritten(training(
        ADD, "if step % args.log == 0:", "    print(f'{total / step:.3f}')", "    total = 0.0", first="total = 0.0"
    ))  # fmt: skip
    assert found.lines[1] == [SUMMED, "print(f'{float(total) / step:.3f}')"]
    assert found.one.written == "`total` is summed on the device; the host now waits where it is read, in line 20"
    assert "numbers stay the same" in found.one.notes[0]


def test_a_bar_that_shows_the_total_in_every_step_shows_it_less_often(rewritten: Rewriter) -> None:
    found = rewritten(training(
        ADD, "bar.set_postfix(mean=total / (step + 1))", first="total, bar = 0.0, tqdm(loader)",
        over="step, (x, y) in enumerate(bar)",
    ))  # fmt: skip
    assert found.lines[1] == [SUMMED, "if step % 50 == 0:", "bar.set_postfix(mean=float(total) / (step + 1))"]
    assert "1 look of the progress bar in 50 steps" in found.one.notes[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (training(ADD, "if total > 9:", "    break", first="total = 0.0"), "in each turn"),
        (training(ADD, "if step % 10 != 0:", "    rate = total", first="total = 0.0"), "in each turn"),
        (training(ADD, "if step % 1 == 0:", "    rate = total", first="total = 0.0"), "in each turn"),
        (training(ADD, "if step == 0 or args.loud:", "    rate = total", first="total = 0.0"), "in each turn"),
        (training(ADD, "score(total)", first="total = 0.0"), "in each turn"),
        (training(ADD, first="total = 0.0", last="for _ in args: score(total)"), "in each turn"),
        (training(ADD, first="total = start()"), "may not be a number"),
        (training(ADD, "total //= 2", first="total = 0.0"), "may not be a number"),
        (training(ADD, first="total = 0.0", last="show = lambda: total"), "another function"),
        (training(ADD, first="total = 0.0", last="print(f'{total=}')"), "by its name"),
        (training(ADD, first="total = 0.0", last="log(**locals())"), "by its name"),
        (training(ADD, first="global total"), "not local to this function"),
        (training(f"args.total += loss.item(){ITEM}"), "kept in an object"),
        (training(f"sums['loss'] += loss.item(){ITEM}", first="sums = {'loss': 0.0}"), "kept in an object"),
        (training(f"total += out.item(){ITEM}", first="total = 0"), "whole numbers"),
        (training(f"total += loss.item() + out.item(){ITEM}", first="total = 0.0"), "several values"),
        (training(f"total += score(out).item(){ITEM}", first="total = 0.0"), "`score` does and returns"),
        (training("total += out[out > 0].mean().item()  # waits: mask", first="total = 0.0"), "boolean mask"),
        (training("total += F.mse_loss(out.cpu(), y).item()  # waits: cpu", first="total = 0.0"), "would stay"),
        (training(f"total += float(loss){ITEM}", first="total = loss = 0.0"), "may read a plain number"),
        (training("with torch.inference_mode():", f"    {ADD}", "total /= 2", first="total = 0.0"), "inference mode"),
        (HEAD + f"def step(loss):\n    total = 0.0\n    total += loss.item(){ITEM}\n", "no loop"),
    ],
)
def test_totals_that_are_left(rewritten: Rewriter, text: str, why: str) -> None:
    found = rewritten(text)
    assert not found.one.written
    assert why in found.one.why
    assert not found.diff


# values that are kept


KEEP = f"losses.append(loss.item()){ITEM}"
KEPT = "losses.append(loss.detach().clone())"


@pytest.mark.parametrize(
    ("last", "came"),
    [
        ("return sum(losses) / len(losses)", "return sum([value.item() for value in losses]) / len(losses)"),
        ("print(np.mean(losses[-20:]))", "print(np.mean([value.item() for value in losses[-20:]]))"),
        ("return statistics.fmean(losses)", "return statistics.fmean([value.item() for value in losses])"),
        ("return losses[-1]", "return losses[-1].item()"),
        ("if losses: print(max(losses))", "if losses: print(max([value.item() for value in losses]))"),
    ],
)
def test_kept_values_are_read_where_the_list_is(rewritten: Rewriter, last: str, came: str) -> None:
    found = rewritten(training(KEEP, first="losses = []", last=last))
    assert found.lines[1] == [KEPT, came]
    assert "512 bytes" in found.one.notes[0]


def test_a_value_that_was_made_a_float_is_read_as_one(rewritten: Rewriter) -> None:
    found = rewritten(training(
        f"losses.append(float(loss)){ITEM}", "if step % 9 == 0:", "    print(losses[-1])", "    losses.clear()",
        first="losses = list()", last="return sum(losses)",
    ))  # fmt: skip
    assert found.lines[1] == [KEPT, "print(float(losses[-1]))", "return sum([float(value) for value in losses])"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (training(KEEP, first="losses = []", last="return losses"), "used where numbers are needed"),
        (training(KEEP, first="losses = []", last="args.all.append(losses)"), "used where numbers are needed"),
        (training(KEEP, first="losses = []", last="json.dump(losses, f)"), "used where numbers are needed"),
        (training(KEEP, first="losses = []", last="plt.plot(losses)"), "used where numbers are needed"),
        (training(KEEP, first="losses = []", last="losses.append(0.0)"), "used where numbers are needed"),
        (training(KEEP, first="losses = []", last="losses[0] = 1.0"), "used where numbers are needed"),
        (
            training(KEEP, first="losses = []", last="for value in losses: print(value)"),
            "used where numbers are needed",
        ),
        (training(KEEP, "mean = sum(losses)", first="losses = []"), "in each turn"),
        (training(KEEP, first="losses = []", last="losses[0], y = 1.0, 2"), "not be valid Python"),
        (training(KEEP, first="losses = [0.0]"), "does not start as an empty list"),
        (training(KEEP, first="losses = args.losses"), "does not start as an empty list"),
        (training(f"args.losses.append(loss.item()){ITEM}"), "kept in an object"),
        (training(f"losses.append(score(out).item()){ITEM}", first="losses = []"), "`score` does and returns"),
    ],
)
def test_lists_that_are_left(rewritten: Rewriter, text: str, why: str) -> None:
    found = rewritten(text)
    assert not found.one.written
    assert why in found.one.why
    assert not found.diff


def test_a_value_with_a_name_is_read_where_it_is_shown(rewritten: Rewriter) -> None:
    seldom = f"value = loss.item(){ITEM}", "if not step % 10:", "    print(value)"
    assert rewritten(training(*seldom)).lines[1] == ["value = loss.detach().clone()", "print(value.item())"]


@pytest.mark.parametrize(
    ("turn", "why"),
    [
        ((f"value = loss.item(){ITEM}", "args.meter.update(value)"), "in each turn"),
        ((f"loss = loss.item(){ITEM}",), "set on other lines"),
        ((f"args.loss = loss.item(){ITEM}",), "no other form"),
        ((f"return loss.item(){ITEM}",), "returned"),
        ((f"args.meter.update(loss.item()){ITEM}",), "may do more"),
        ((f"assert loss.item() < 9{ITEM}",), "depends on the value"),
        (("if loss > 9:  # waits: bool", "    break"), "depends on the value"),
        ((f"a = 1; total = loss.item(){ITEM}",), "no other form"),
    ],
)
def test_other_lines_are_left_with_their_reason(rewritten: Rewriter, turn: tuple[str, ...], why: str) -> None:
    found = rewritten(training(*turn))
    assert why in found.one.why
    assert found.one.instead
    assert not found.diff


# reports


@pytest.mark.parametrize(
    ("over", "turn", "test"),
    [
        ("step, (x, y) in enumerate(loader)", "print(loss)  # waits: print", "step % 50 == 0"),
        ("i in range(9)", f"print(f'{{i}} {{loss.item():.3f}}'){ITEM}", "i % 50 == 0"),
        ("i, (x, y) in enumerate(tqdm(loader), 1)", f"logger.info('%f', loss.item()){ITEM}", "i % 50 == 0"),
        ("i, (x, y) in tqdm(enumerate(loader))", f"logging.info(float(loss)){ITEM}", "i % 50 == 0"),
        ("x, y in loader", f"n += 1; print(n){ITEM}", ""),
    ],
)
def test_reports_come_once_in_fifty_steps(rewritten: Rewriter, over: str, turn: str, test: str) -> None:
    found = rewritten(training(turn, over=over))
    if not test:
        assert not found.one.written
        return
    assert found.lines[1] == [f"if {test}:"]
    assert found.one.written == f"line 18 runs where `{test}` only"
    assert "line in 50 steps instead of 50" in found.one.notes[0]


@pytest.mark.parametrize(
    ("text", "review"), [("meter.mean()", True), ("sum(g for g in gaps)", True), ("loss.detach().mean()", False)]
)
def test_a_report_that_calls_what_a_meter_may_have_is_to_be_reviewed(
    rewritten: Rewriter, text: str, review: bool
) -> None:
    found = rewritten(training(f"print(step, loss.item(), {text}){ITEM}"))
    assert found.one.review is review and ("changes something" in found.one.notes[0]) is review


def test_a_step_that_is_counted_by_hand_counts(rewritten: Rewriter) -> None:
    text = training(
        "n += 1", "# what", "print(", f"    n, loss.item(){ITEM}", ")", first="n = 0", over="x, y in loader"
    )
    found = rewritten(text)
    block = found.after.partition("n += 1\n")[2]
    assert block.startswith(
        "        # what\n        if n % 50 == 0:\n            print(\n                n, loss.item()"
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (training(f"print(loss.item()){ITEM}", over="x, y in loader"), "`for i, ... in enumerate(...)`"),
        (training(f"print(loss.item()){ITEM}", over="i in range(0, 900, 2)"), "`for i, ... in enumerate(...)`"),
        (training("step = 0", f"print(loss.item()){ITEM}"), "nothing counts"),
        (training("if step % 9 == 0:", f"    print(loss.item()){ITEM}"), "not run in every step"),
        (training(f"print(loss.item(), file=log){ITEM}"), "writes to a file"),
        (training(f"print(loss.item(), end=' '){ITEM}"), "part of an output line"),
        (training(f"print(loss.item(), score(out)){ITEM}"), "`score(out)` in it"),
        (training(f"print(n := loss.item()){ITEM}"), "`n := loss.item()` in it"),
        (training(f"args.log.info(loss.item()){ITEM}"), "may do more"),
        (training(f"wandb.log({{'loss': loss.item()}}){ITEM}"), "may do more"),
        (
            training(f"print(loss.item()){ITEM}").replace("loss.backward()", "pass").replace("model(x)", "x"),
            "may not be a step",
        ),
        (HEAD + f"def show(loss):\n    print(loss.item()){ITEM}\n", "no loop"),
    ],
)
def test_reports_that_are_left(rewritten: Rewriter, text: str, why: str) -> None:
    found = rewritten(text)
    assert why in found.one.why
    assert not found.diff


def test_a_loop_around_the_steps_is_not_counted_for_them(rewritten: Rewriter) -> None:
    text = training("pass").replace("    for step", "    for epoch in range(9):\n      for step") + (
        f"      print(epoch, loss.item()){ITEM}\n"
    )
    assert "may not be a step" in rewritten(text.replace("    pass\n      print", "      print")).one.why


# the whole device


def test_waiting_for_the_whole_device_is_proposed_to_go(rewritten: Rewriter) -> None:
    found = rewritten(training("torch.cuda.synchronize()  # waits: synchronize", "print(time.time())"))
    assert found.lines == (["torch.cuda.synchronize()"], [])
    assert found.one.review
    assert "clock in line 19" in found.one.notes[1]


def test_memory_that_is_given_back_is_proposed_to_stay(rewritten: Rewriter) -> None:
    found = rewritten(training("if args.cuda:", "    torch.cuda.empty_cache()  # waits: allocator", "x = 1"))
    assert found.lines == (["if args.cuda:", "torch.cuda.empty_cache()"], [])
    assert found.one.review
    assert "other processes" in found.one.notes[0]


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (("y = x.to('cpu', non_blocking=True)",), (), "may need it"),
        (("ms = begin.elapsed_time(end)",), (), "may need it"),
        (("side = torch.cuda.Stream()",), (), "may need it"),
        (("if score(x):",), (), "remove the block"),
        (("with side:",), (), "remove the block"),
        (("if args.cuda:",), ("else:", "    x = 1"), "remove the block"),
        (("if args.a:", "    x = 1", "elif args.b:"), (), "remove the block"),
    ],
)
def test_waits_that_may_be_needed_are_left(
    rewritten: Rewriter, before: tuple[str, ...], after: tuple[str, ...], why: str
) -> None:
    indent = "    " if before[-1].endswith(":") else ""
    line = f"{indent}torch.cuda.synchronize()  # waits: synchronize"
    found = rewritten(training(*before, line, *after))
    assert why in found.one.why
    assert not found.diff


# several


def test_several_findings_make_one_patch_that_leaves_nothing_to_patch(rewritten: Rewriter, tmp_path: Path) -> None:
    found = rewritten(training(
        ADD, f"hits += loss.item(){ITEM}", "print(loss, total)  # waits: print", f"print(loss.item()){ITEM}",
        "torch.cuda.synchronize()  # waits: synchronize", first="total, hits = 0.0, 0.0", last="return total, hits",
    ))  # fmt: skip
    assert [bool(one.written) for one in found.findings] == [True] * 5
    assert found.after.count("if step % 50 == 0:") == 2
    assert "print(loss, float(total))" in found.after
    assert "return float(total), float(hits)" in found.after
    (tmp_path / "again").mkdir()
    again = Rewritten(tmp_path / "again", found.after)
    assert not again.diff


def test_a_line_that_moved_is_left(tmp_path: Path) -> None:
    made = Rewritten(tmp_path, training(ADD, first="total = 0.0"))
    assert made.one.written
    text = made.before.replace("def main", "def other():\n    pass\n\n\n\n\n\n\n\n\n\ndef main")
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    from hotlap.patch.findings import make

    (left,) = make(tmp_path / "run", (), tmp_path).record.findings
    assert "no longer in `main`" in left.why
