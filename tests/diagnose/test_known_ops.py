"""Operations that something else does for less: told where they take much of a trace, at the line that has most."""

import ast
from pathlib import Path

import msgspec
import pytest
import torch

from agent.harness import Runner
from hotlap.cli.run import PROFILE_STEPS
from hotlap.diagnose.causes import Cause
from hotlap.diagnose.known_ops import KNOWN, LEAST, KnownOp, known_ops
from hotlap.diagnose.repeated import (
    DENORMALS,
    GATED,
    HALF,
    NOT_CARRIED,
    ORDER,
    SAME_ROWS,
    SPARSE,
    SPARSE_MADE,
    TAP_BY_TAP,
    UNUSED,
    Repeated,
    of_lines,
)
from hotlap.diagnose.statements import NORMS, repeating
from hotlap.records.diagnosis import Finding, Place
from hotlap.records.profile import Lines
from hotlap.records.trace import Breakdown, HostTime, KernelTime, RankTrace, Window

MS = 1_000_000
AT = Place(file="model.py", line=7, function="Net.forward")
COMPUTE = Finding(id="compute", bound="compute", share=0.8, evidence="forward 8 ms")
BANDWIDTH = Finding(id="bandwidth", bound="bandwidth", share=0.9)
WINDOW = Window(start_ns=0, end_ns=20 * MS, found_by="ProfilerStep", steps=((0, 10 * MS), (10 * MS, 20 * MS)))


def on_the_cpu(op: str, ns: int) -> RankTrace:
    """Of two steps, in which an op takes so much of 20 ms in the model."""
    rows = (
        HostTime(name=op, ns=ns, total_ns=ns, count=2, where=AT),
        HostTime(name="aten::mm", ns=20 * MS - ns, total_ns=20 * MS, count=2),
    )
    return RankTrace(source="t", rank=0, device_name="cpu", events=0, window=WINDOW, step_ms=10.0, model=rows)


def on_a_device(op: str, ns: int) -> RankTrace:
    rows = tuple(
        KernelTime(by=by, key=op, ns=ns, count=2, share=ns / (20 * MS), longest_ns=ns, where=AT)
        for by in ("op", "name")
    )
    busy = Breakdown(
        device=0, span_ns=20 * MS, compute_ns=20 * MS, exposed_communication_ns=0, exposed_copy_ns=0, idle_ns=0,
        communication_ns=0, copy_ns=0, kernel_ns=20 * MS, streams=1, kernels=4,
    )  # fmt: skip
    return RankTrace(
        source="t", rank=0, device_name="H200", events=0, window=WINDOW, step_ms=10.0, kernels=rows, breakdown=(busy,)
    )


@pytest.mark.parametrize("known", KNOWN, ids=lambda one: one.cause.id)
def test_each_is_of_operations_that_torch_has(known: KnownOp) -> None:
    ops = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()}
    matched = [name for name in ops if known.ops.fullmatch(name)]
    assert matched, "none of torch's operations"


@pytest.mark.parametrize(
    "op", ["aten::linalg_inv_ex", "aten::_linalg_svd", "LinalgSvdBackward0", "aten::linalg_lu_factor_ex"]
)
def test_a_matrix_that_is_decomposed(op: str) -> None:
    assert known_ops(on_a_device(op, 12 * MS), (BANDWIDTH,), step_ms=10.0)[0].id == "decomposition"


def test_a_1x1_convolution_of_few_samples_on_one_thread_is_torch_s_own() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.profiler.profile() as profile:
            torch.nn.Conv2d(8, 3, 1)(torch.ones(2, 8, 9, 9))
    finally:
        torch.set_num_threads(threads)
    (op,) = (one.key for one in profile.key_averages() if "slow_conv" in one.key)
    told = known_ops(on_the_cpu(op, 12 * MS), (COMPUTE,), step_ms=10.0)[0]
    assert told.id == "slow-convolution" and "before an upsampling" in told.instead


def test_no_operation_is_of_two() -> None:
    for name in {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()}:
        assert sum(known.ops.fullmatch(name) is not None for known in KNOWN) <= 1, name


@pytest.mark.parametrize("op", ["aten::sort", "SortBackward0"])
def test_on_the_cpu_it_has_its_part_of_the_model(op: str) -> None:
    found, rest = known_ops(on_the_cpu(op, 10 * MS), (COMPUTE,), step_ms=10.0)
    assert (found.id, found.bound, found.named, found.where) == ("sorting", "compute", True, AT)
    assert found.share == pytest.approx(0.4) and rest.share == pytest.approx(0.4)
    assert f"4.00 ms a step in {op}" in found.evidence and "the cause listed separately" in rest.evidence


def test_on_a_device_it_has_its_kernels_of_the_step() -> None:
    found, rest = known_ops(on_a_device("IndexBackward0", 12 * MS), (BANDWIDTH,), step_ms=10.0)
    assert (found.id, found.bound, found.where) == ("index-gradient", "compute", AT)
    assert found.share == pytest.approx(0.6) and rest.share == pytest.approx(0.3)


def test_what_it_takes_is_taken_from_the_dearest_finding_that_only_says_where() -> None:
    own = Finding(id="host-code", bound="unknown", share=0.5)
    cause = Finding(id="padding", bound="compute", share=0.99, named=True)
    found, *rest = known_ops(on_a_device("aten::cat", 12 * MS), (BANDWIDTH, own, cause), step_ms=10.0)
    assert found.id == "whole-copies" and [one.share for one in rest] == pytest.approx([0.3, 0.5, 0.99])


@pytest.mark.parametrize(
    "op",
    ["aten::mm", "aten::add_", "aten::native_layer_norm", "aten::index", "aten::embedding", "aten::linalg_vector_norm"],
)
def test_what_nothing_else_does_for_less_is_not_told(op: str) -> None:
    assert known_ops(on_a_device(op, 19 * MS), (BANDWIDTH,), step_ms=10.0) == (BANDWIDTH,)


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("net = f\n    return jacobian(net, x, create_graph=True)", "jacobian-by-rows"),
        ("net = f\n    return jacobian(net, x, vectorize=True)", None),
        ("wanted = F.one_hot(y, 9).float()\n    return -(wanted * torch.log(x)).sum()", "cross-entropy-by-hand"),
        ("wanted = F.one_hot(y, 9).float()\n    return (wanted - x).square().sum()", None),
        ("wanted = F.one_hot(y, 9).float()\n    return wanted @ x", "one-hot-product"),
        ("apart = x[:, None] - y[None]\n    return (x[:, None] - y[None]).square().sum()", "all-pairs"),
        ("c = 1\n    return y + sum(p.pow(2).sum() for p in x.parameters())", "weight-penalty"),
        ("for p in x.parameters():\n        y = y + torch.sum(p**2)", "weight-penalty"),
        ("for p in x.parameters():\n        y = y + p.grad.norm() ** 2", None),
        ("c = 1\n    return max(p.norm().item() for p in x.parameters())", None),
        ("for p in x.parameters():\n        y = y * p", None),
    ],
)
def test_statements_have_the_device_s_work_at_their_lines(tmp_path: Path, body: str, cause: str | None) -> None:
    file = tmp_path / "loss.py"
    file.write_text(f"def loss(x, y):\n    {body}\n")
    at = Place(file=str(file), line=3, function="loss")
    row = KernelTime(by="line", key="loss.py:3", ns=12 * MS, count=2, share=0.6, longest_ns=MS, where=at)
    rank = msgspec.structs.replace(on_a_device("aten::mul", 12 * MS), kernels=(row,))
    found = known_ops(rank, (BANDWIDTH,), step_ms=10.0)
    assert [one.id for one in found[:-1]] == ([cause] if cause else [])
    assert found[0].where == (at if cause else None) and found[0].share == pytest.approx(0.6 if cause else 0.9)


LAYER = (
    "u = x.mean({0}, keepdim=True)\n    v = ((x - u) ** 2).mean({0}, keepdim=True)\n    return g * (x - u) / v.sqrt()"
)
RMS = "u = x.pow(2).mean(-1, keepdim=True)\n    return x * torch.rsqrt(u + 1e-6) * g"
STD = "return (x - x.mean(dim=-1, keepdim=True)) / (x.std(dim=-1, keepdim=True) + 1e-6)"
SCORES = "u = x - x.mean()\n    v = torch.sqrt(x.var() + 1e-6)\n    return u / v"


@pytest.mark.parametrize(
    ("body", "instead", "on_cpu"),
    [
        (LAYER.format("-1"), "F.layer_norm(x, x.shape[-1:])", True),
        (LAYER.format("1"), "F.layer_norm(x.movedim(1, -1), x.shape[1:2]).movedim(-1, 1)", True),
        (LAYER.format("(2, 3)"), "F.instance_norm(x)", True),
        (LAYER.format("dims"), "", False),  # over what is not known
        (STD, "F.layer_norm(x, x.shape[-1:])", True),
        (RMS, "F.rms_norm(x, x.shape[-1:])", False),  # on the CPU torch computes that in as many operations
        (SCORES, "", False),
        (f"F.layer_norm(x, (9,))\n    {STD}\n    {SCORES}" + "\n    x = x + 1" * 12, "", False),
    ],
)
def test_norms_by_hand_have_the_operation_that_does_it(body: str, instead: str, on_cpu: bool, tmp_path: Path) -> None:
    (file := tmp_path / "norm.py").write_text(f"def norm(x, g):\n    {body}\n")
    at = Place(file=str(file), line=3 if "\n" in body else 2, function="norm")
    row = KernelTime(by="line", key="norm.py:3", ns=12 * MS, count=2, share=0.6, longest_ns=MS, where=at)
    rank = msgspec.structs.replace(on_a_device("aten::mul", 12 * MS), kernels=(row,))
    told = [one.instead for one in known_ops(rank, (BANDWIDTH,), step_ms=10.0) if one.id == "norm-by-hand"]
    assert [text.split("`")[1] for text in told] == ([instead] if instead else [])
    host = HostTime(name="aten::mul", ns=10 * MS, total_ns=10 * MS, count=20, where=at)
    cpu = msgspec.structs.replace(on_the_cpu("aten::mul", MS), model=(host,))
    assert ("norm-by-hand" in [one.id for one in known_ops(cpu, (COMPUTE,), step_ms=10.0)]) is on_cpu


def test_what_torchs_norms_compute_is_the_same() -> None:
    x = torch.randn(2, 3, 4, 5)
    for (centred, over), text in NORMS.items():
        dims, got = ast.literal_eval(over), eval(text.replace("{x}", "x"), {"F": torch.nn.functional, "x": x})
        u = x.mean(dims, keepdim=True) if centred else torch.zeros(())
        by_hand = (x - u) / torch.sqrt(((x - u) ** 2).mean(dims, keepdim=True) + 1e-5)
        torch.testing.assert_close(got, by_hand, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("count", "bound"), [(2000, "launch"), (20, "compute")])
def test_a_jacobian_of_small_operations_is_launched(tmp_path: Path, count: int, bound: str) -> None:
    file = tmp_path / "pinn.py"
    file.write_text("def residual(f, x):\n    full = torch.autograd.functional.jacobian(f, x)\n")
    at = Place(file=str(file), line=2, function="residual")
    row = HostTime(name="aten::mul", ns=10 * MS, total_ns=10 * MS, count=count, where=at)
    other = HostTime(name="aten::mm", ns=10 * MS, total_ns=10 * MS, count=2)
    rank = msgspec.structs.replace(on_the_cpu("aten::mul", MS), model=(row, other))
    found, rest = known_ops(rank, (COMPUTE,), step_ms=10.0)
    assert (found.id, found.bound, found.where) == ("jacobian-by-rows", bound, at)
    assert found.share == pytest.approx(0.4) and rest.share == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("op", "helps"),
    [
        ("LinalgSvdBackward0", "spectral_norm"), ("aten::linalg_inv_ex", "cholesky_solve"),
        ("aten::linalg_solve_triangular", "Independent"), ("aten::_linalg_eigh", "every n steps"),
    ],
)  # fmt: skip
def test_what_helps_with_a_decomposition_is_said_by_its_kind(op: str, helps: str) -> None:
    said = known_ops(on_a_device(op, 12 * MS), (BANDWIDTH,), step_ms=10.0)[0].instead
    assert helps in said and "every n steps" in said
    assert sum(part in said for part in ("spectral_norm", "cholesky_solve", "Independent")) <= 1


def test_double_precision_is_behind_what_needs_it_and_the_cause_of_what_is_slow_by_it() -> None:
    """A Gaussian process was told to compute in float32; a convolution to be torch's own, with double behind it."""
    double = Finding(id="double-precision", bound="compute", share=0.4, named=True, evidence="float64")
    told = known_ops(on_the_cpu("aten::linalg_inv_ex", 12 * MS), (double, COMPUTE), step_ms=10.0)
    found = {one.id: one for one in told}
    assert "decomposition" in found and found["double-precision"].beneath and not found["double-precision"].share
    slow = known_ops(on_the_cpu("aten::slow_conv2d_forward", 12 * MS), (double, COMPUTE), step_ms=10.0)
    assert {one.id for one in slow} == {"double-precision", "compute"}
    assert next(one.share for one in slow if one.id == "double-precision") == pytest.approx(0.8 * 0.6)


CALL = Place(file="model.py", line=30, function="decode")


@pytest.mark.parametrize("on_cpu", [True, False])
def test_what_is_computed_again_has_its_part_of_its_lines(on_cpu: bool) -> None:
    again = [Repeated(("model.py", 7), 4, 0.75, CALL), Repeated(("model.py", 9), 4, 0.75, CALL)]
    row = KernelTime(by="line", key="model.py:7", ns=12 * MS, count=2, share=0.6, longest_ns=MS, where=AT)
    rank = msgspec.structs.replace(on_a_device("aten::mm", 12 * MS), kernels=(row,))
    found, rest = known_ops(
        on_the_cpu("aten::mm", 10 * MS) if on_cpu else rank, (COMPUTE if on_cpu else BANDWIDTH,), 10.0, again
    )
    share = 0.8 * 0.5 * 0.75 if on_cpu else 0.6 * 0.75
    assert (found.id, found.where, found.named) == ("computed-again", CALL, True)
    assert found.share == pytest.approx(share) and found.cost_ms == pytest.approx(10 * share)
    assert found.evidence.startswith("4 times a step with the same input")
    assert rest.share == pytest.approx((0.8 if on_cpu else 0.9) - share)


def test_dropout_is_one_of_the_cpu_and_not_where_it_is_of_zeros() -> None:
    rank, of = on_the_cpu("aten::bernoulli_", 10 * MS), Repeated(("model.py", 7), 99, 0.99, CALL, SPARSE)
    found, _ = known_ops(rank, (COMPUTE,), 10.0)
    assert found.id == "dropout" and "rand_like" in found.instead
    assert [one.id for one in known_ops(rank, (COMPUTE,), 10.0, [of])] == ["sparse-product", "compute"]
    assert not next(one for one in KNOWN if one.cause.id == "dropout").on_a_device


@pytest.mark.parametrize(("backward", "part"), [(0.0, 0.5), (1.0, 1 / 3), (2.0, 0.25)])
def test_of_a_line_that_is_used_too_what_is_unused_has_no_backward(backward: float, part: float) -> None:
    lines = Lines(files=("model.py",), unused=((0, 7, "Net.forward", 9, 0.5, 0, 3, "step"),))
    (found,) = of_lines(lines, backward)
    assert found.cause is UNUSED and found.part == pytest.approx(part)
    told, *_ = known_ops(on_the_cpu("aten::mm", 10 * MS), (COMPUTE,), 10.0, [found._replace(part=0.2)])
    assert told.id == "unused-results"


def test_a_term_of_weight_zero_is_told_at_its_product_with_all_lines_that_make_it() -> None:
    rows = ((0, 7, "Net.forward", 9, 0.75, 0, 3, "loss"), (0, 8, "loss", 2, 1.0, 0, 3, "loss"))
    of = list(of_lines(Lines(files=("model.py",), zeroed=rows), 2.0))
    assert [(one.line, one.part) for one in of] == [(("model.py", 7), 0.75), (("model.py", 8), 1.0)]
    found, rest = known_ops(on_the_cpu("aten::mm", 10 * MS), (COMPUTE,), 10.0, of)
    assert (found.id, found.where) == ("zero-weight", Place(file="model.py", line=3, function="loss"))
    assert "uses 11 operations, most of their work at line 7 in Net.forward" in found.evidence
    assert found.share == pytest.approx(0.8 * 0.5 * 0.75) and rest.share == pytest.approx(0.8 - found.share)
    assert list(of_lines(Lines(zeroed=rows))) == []


@pytest.mark.parametrize(("cause", "told"), [(SPARSE, True), (SPARSE_MADE, True), (SAME_ROWS, False)])
def test_zeros_are_told_from_a_tenth_of_the_step_on(cause: Cause, told: bool) -> None:
    of = [Repeated(("model.py", 7), 99, 0.3, AT, cause)]  # 12% of the step
    found = known_ops(on_the_cpu("aten::mm", 10 * MS), (COMPUTE,), 10.0, of)
    assert [one.id for one in found if one.named] == ([cause.id] if told else [])
    of = [Repeated(("model.py", 7), 99, 0.2, AT, cause)]
    assert not any(one.named for one in known_ops(on_the_cpu("aten::mm", 10 * MS), (COMPUTE,), 10.0, of))


def test_rows_that_are_multiplied_by_zero_are_a_cause_of_their_own() -> None:
    of = [Repeated(("model.py", 7), 8, 0.875, CALL, GATED), Repeated(("model.py", 7), 2, 0.01, CALL)]
    found, _ = known_ops(on_the_cpu("aten::mm", 10 * MS), (COMPUTE,), 10.0, of)
    assert (found.id, found.where) == ("gated-rows", CALL) and "8 modules get the same rows" in found.evidence
    assert found.share == pytest.approx(0.8 * 0.5 * 0.875)


@pytest.mark.parametrize(
    ("cause", "number", "said", "helps"),
    [
        (UNUSED, 170, "170 operations", "leave it out"),
        (SPARSE, 99, "99% of a constant matrix", "to_sparse_csr"),
        (SPARSE_MADE, 99, "99% of a matrix that the step makes are", "torch.sparse_coo_tensor"),
        (TAP_BY_TAP, 400, "a kernel of 400 taps", "rfft"),
        (ORDER, "300.0 million multiplications", "300.0 million", "multi_dot"),
        (DENORMALS, 20, "20 times as long", "set_flush_denormal"),
        (SAME_ROWS, 8, "occurs 8 times", "after that"),
        (NOT_CARRIED, 12, "12 calls a step", "self.rnn(x_new, state)"),
        (HALF, 20, "20 times as long as in float32", "enabled="),
    ],
)
def test_what_something_else_does_for_less(cause: Cause, number: int | str, said: str, helps: str) -> None:
    of = [Repeated(("model.py", 7), number, 0.9, AT, cause)]
    found, _ = known_ops(on_the_cpu("aten::mm", 10 * MS), (COMPUTE,), 10.0, of)
    assert (found.id, found.where) == (cause.id, AT) and said in found.evidence and helps in found.instead
    assert found.share == pytest.approx(0.8 * 0.5 * 0.9)


@pytest.mark.parametrize(
    ("body", "at"),
    [
        (["x = x.repeat(k, 1)", "h = x * 2", "return net(h)"], 2),
        (["m, a = m.expand(4, 4), x.tile(k, 1)", "y = m", "return net(a)"], 2),
        (["y = m", "z = y", "return net(x.repeat_interleave(k, 0))"], 4),
        (["m = m.expand(4, 4)", "y = x", "return net(y)"], None),
        (["x = x * 2", "h = x", "return net(h)", "x = x.repeat(k, 1)"], None),
    ],
)
def test_where_rows_are_repeated_that_come_to_a_line(body: list[str], at: int | None, tmp_path: Path) -> None:
    """Not where others are, or later; where no statement says so, the product's own line."""
    script = tmp_path / "s.py"
    script.write_text("\n    ".join(["def forward(net, x, m, k):", *body]) + "\ndef net(x):\n    return x @ W\n")
    inner = Place(file=str(script), line=len(body) + 3, function="net")
    found = repeating([Place(file=str(script), line=4, function="forward"), inner])
    assert found == (inner if at is None else Place(file=str(script), line=at, function="forward"))


def test_what_is_computed_again_holds_waits_for_its_launches() -> None:
    launch = Finding(id="launch", bound="launch", share=0.6)
    slow = msgspec.structs.replace(on_the_cpu("aten::mm", 10 * MS), breakdown=on_a_device("aten::mm", MS).breakdown)
    found, _ = known_ops(slow, (launch,), 10.0, [Repeated(("model.py", 7), 4, 0.75, CALL)])
    assert found.id == "computed-again" and found.share == pytest.approx(0.6 * 0.5 * 0.75)


def test_little_that_is_computed_again_is_not_told() -> None:
    again = [Repeated(("model.py", 7), 2, 0.45, CALL), Repeated(("other.py", 7), 2, 0.5, CALL)]
    assert known_ops(on_the_cpu("aten::mm", 10 * MS), (COMPUTE,), 10.0, again) == (COMPUTE,)
    crowded = Finding(id="cpu-crowded", bound="unknown", share=0.2)
    found = known_ops(on_the_cpu("aten::mm", 10 * MS), (COMPUTE, crowded), 10.0, again)
    assert found[0].id == "computed-again", "of what the machine leaves it is much"


@pytest.mark.parametrize("waited", [0.0, 0.3])
def test_waits_for_a_core_hide_no_cause(waited: float) -> None:
    """They take of all alike."""
    crowded = Finding(id="cpu-crowded", bound="unknown", share=waited)
    found = known_ops(on_a_device("aten::sort", int(1.1 * LEAST * 20 * MS)), (BANDWIDTH, crowded), step_ms=10.0)
    assert found[0].id == "sorting" and found[0].share == pytest.approx(1.1 * LEAST * (1 - waited))


def test_little_is_not_told() -> None:
    little = int(0.99 * LEAST * 20 * MS)
    assert known_ops(on_a_device("aten::sort", little), (BANDWIDTH,), step_ms=10.0) == (BANDWIDTH,)
    assert known_ops(on_the_cpu("aten::sort", 10 * MS), (), step_ms=10.0) == (), "the model takes no time"


def test_a_sort_in_a_loss_is_the_headline(runner: Runner, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.body = torch.nn.Linear(64, 64)\n"
        "    def forward(self, x):\n"
        "        return self.body(x).flatten().sort().values[-9:]\n"
        "net = Net()\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)\n"
        "for _ in range(90):\n"
        "    optimizer.zero_grad()\n"
        "    net(torch.randn(2000, 64)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    found = runner.judged(runner.forked(str(script), profile_steps=PROFILE_STEPS), str(script))
    first = next(one for one in found.findings if one.id not in {"cpu-crowded", "cpu-steal"})
    assert first.id == "sorting" and first.where is not None and first.where.line == 7 and "topk" in first.instead
