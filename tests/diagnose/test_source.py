"""The user's source: the line of a call, and what the statement at a line does."""

import json
import re
from pathlib import Path
from textwrap import dedent, indent

import msgspec
import pytest

from hotlap.diagnose import causes, known_ops, repeated, seldom_used, small_ops
from hotlap.diagnose.causes import KNOWN
from hotlap.diagnose.source import call_of, lines_of, parsed, reading_here, statement_at
from hotlap.diagnose.statements import cause_at, cut_at, elements, last_of_all_at, own_cause_at, pairs_at
from hotlap.records.diagnosis import Place
from hotlap.records.run import Facts, RootFacts

FACTS = Facts(pid=1, rank=0, world=1, argv=("train.py",), python="3.12", torch="2.13.0")


def at(tmp_path: Path, text: str, line: int) -> Place:
    file = tmp_path / "train.py"
    file.write_text(dedent(text))
    return Place(file=str(file), line=line)


@pytest.mark.parametrize(
    ("statement", "cause", "change"),
    [
        ("gc.collect()", "collect", "`gc.collect()`"),
        ("torch.cuda.empty_cache()", "empty-cache", "`torch.cuda.empty_cache()`"),
        ("x = torch.tensor(states, device=d)", "tensor-of-list", "numpy.stack(states)"),
        ("return torch.FloatTensor([b.x for b in batch])", "tensor-of-list", "numpy.stack([b.x for b in batch])"),
        ("x = torch.tensor([[a.x, *b] for a in batch])", "tensor-of-list", "numpy.stack("),
        ("x = torch.Tensor([first.numpy(), last.numpy()])", "tensor-of-list", "numpy.stack([first.numpy()"),
        ("x = torch.tensor([*before, new])", "tensor-of-list", "numpy.stack([*before, new])"),
        ("x = torch.tensor(logits.tolist())", "tensor-of-list", "numpy.stack(logits.tolist())"),
        ("old = copy.deepcopy(model.state_dict())", "copy-of-all", "_foreach_copy_"),
        ("torch.save(model.state_dict(), path)", "checkpointing", "async_save"),
        ("writer.add_histogram('w', w, step)", "logging", "if step % 50 == 0: writer.add_histogram('w', w, step)"),
        ("wandb.log({'loss': loss})", "logging", "wandb.log"),
        ("image = Image.open(path).convert('RGB')", "files", "worker processes"),
        ("with open(path) as file:\n    pass", "files", "worker processes"),
        ("counts, edges = np.histogram(values, bins=9)", "logging", "np.histogram(values, bins=9)"),
        ("z = F.one_hot(x, 9).float() @ y", "one-hot-product", "F.embedding"),
        ("z = self.rows(F.one_hot(x, 9).float())", "one-hot-product", "F.embedding"),
        ("z = torch.mm(torch.mm(torch.diag(x), y), batch)", "diagonal-product", "d[:, None] * A * d"),
        ("z = torch.diag_embed(x) @ y", "diagonal-product", "by broadcasting"),
        ("at = np.random.choice(n, 5, p=weights)", "weighted-draw", "np.searchsorted"),
        ("at = np.random.choice(n, 5, replace=False, p=weights)", "weighted-draw", "np.searchsorted"),
        ("at = np.random.choice(n, 5, replace=False)", "draw-without-repetition", "shuffle=False"),
        ("at = self.rng.choice(n, 5, False)", "draw-without-repetition", "default_rng"),
        ("json.dump(history, file)", "logging", "json.dump(history, file)"),
        ("ids = self.tokenizer(text, padding=True)", "tokenizing", "keep the ids"),
        ("row = self.table.iloc[at]", "rows-of-a-table", "in place of `self.table.iloc[at]`"),
        ("row = db.execute('SELECT x FROM t LIMIT 1 OFFSET ?', (at,)).fetchone()", "queries", "primary key"),
        ("data = urlopen(address).read()", "network", "download them once"),
        ("out = subprocess.check_output(['ps'], text=True)", "processes", "around `subprocess.check_output(['ps'],"),
        ("os.system('sync')", "processes", "`os.system('sync')`"),
        ("time.sleep(0.01)", "sleeping", "take out `time.sleep(0.01)`"),
        ("state, reward = env.step(action)", "environment", "AsyncVectorEnv"),
        ("odds = np.array(self.priorities)", "array-of-list", "in place of `np.array(self.priorities)`"),
        ("memory = numpy.concatenate([memory, new])", "array-of-list", "numpy.zeros(capacity)"),
        ("all_ = np.concatenate([self.memory, new])", "array-of-list", "numpy.zeros(capacity)"),
        ("odds = np.array([*old, new])", "array-of-list", "numpy.zeros(capacity)"),
        ("row = torch.from_numpy(np.concatenate((x, y)).astype(np.int32))", "array-of-list", "once for all rows"),
        ("score += f1_score(y, p)", "metric-on-host", "argmax"),
        ("area = auc(*roc_curve(y, p)[:2])", "metric-on-host", "(y, p)[:2])` only in the steps that log it"),
        ("writer.add_scalar('auc', area(y, p))", "logging", "compute what is logged only then"),
        ("total += loss.item()", "read-value", "loss.detach()"),
        ("for p in model.parameters():\n    p.mul_(2)", "loop-over-parameters", "_foreach_lerp_"),
        ("for a, b in zip(x.parameters(), y.parameters()):\n    a.lerp_(b, 0.1)", "loop-over-parameters", "_foreach"),
    ],
)
def test_what_a_statement_does_is_told_with_the_change_to_make(
    tmp_path: Path, statement: str, cause: str, change: str
) -> None:
    found = cause_at(at(tmp_path, f"def f(batch, model, x, y):\n    {statement}".replace("\n    p", "\n        p")
                        .replace("\n    a", "\n        a"), 2), device=True)  # fmt: skip
    assert found is not None and found.id == cause and change in found.instead and "{it}" not in found.instead


@pytest.mark.parametrize("given", ["replace=True", "replace=False, shuffle=False", "replace=again"])
def test_a_draw_that_may_be_cheap_is_no_cause(given: str, tmp_path: Path) -> None:
    assert cause_at(at(tmp_path, f"rows = rng.choice(n, 5, {given})\n", 1)) is None


def test_a_long_call_is_shown_by_its_name(tmp_path: Path) -> None:
    call = "roc_auc_score(np.concatenate(self.targets), np.concatenate(self.scores))"
    found = cause_at(at(tmp_path, f"self.auc = {call}\n", 1))
    assert found is not None and "`roc_auc_score(...)` only in" in found.instead


@pytest.mark.parametrize(
    ("sorts", "few"),
    [
        ("np.argsort(-scores, axis=1)[:, :TOP]", True),
        ("sorted(scores, key=lambda one: one[1])[-20:]", True),
        ("numpy.sort(scores)[..., :20]", True),
        ("sorted(scores)[1:]", False),  # all but one
        ("sorted(scores)[:-1]", False),
        ("np.argsort(scores)[::-1]", False),
        ("np.argsort(scores)[0]", False),
        ("np.argsort(scores)[:, 3:5]", False),
        ("scores.argsort()[:TOP]", False),  # it may be a tensor's
        ("scores[:TOP]", False),
    ],
)
def test_a_sort_of_which_an_end_is_used(sorts: str, few: bool, tmp_path: Path) -> None:
    found = cause_at(at(tmp_path, f"best = {sorts}\n", 1))
    assert (found is not None and found.id == "sorted-for-few") is few
    assert not few or (found is not None and f"in place of `{sorts}` `np.argpartition" in found.instead)


@pytest.mark.parametrize(
    ("words", "line", "searched"),
    [
        ("['a'] + [w for w in counts]", "n = [self.words.index(t) for t in tokens if t]", "self.words.index(t)"),
        ("sorted(counts)", "known = t in self.words", "t in self.words"),
        ("text.split()", "known = t not in self.words", "t not in self.words"),
        ("dict(counts)", "known = t in self.words", None),
        ("{w for w in counts}", "known = t in self.words", None),
        ("[]\n        self.words = set(counts)", "known = t in self.words", None),
        ("[]\n        words = []", "known = t in words", None),
    ],
)
def test_a_list_that_is_searched(tmp_path: Path, words: str, line: str, searched: str | None) -> None:
    text = f"class A:\n    def f(self):\n        self.words = {words}\n    def g(self, t, tokens):\n        {line}\n"
    found = cause_at(at(tmp_path, text, len(text.splitlines())))
    assert (found and found.id) == (searched and "list-search")
    assert found is None or f"in place of `{searched}` a dict" in found.instead


@pytest.mark.parametrize(
    ("body", "line", "told"),
    [
        ("y = self.head(x)\n        return y[:, -1]", 3, True),
        ("return self.head(self.drop(x))[:, -1, :]", 3, True),
        ("y = self.head(x)\n        return y[:, -1] + y.mean(1)", 3, False),
        ("y = self.head(x[:, -1])\n        return y", 3, False),
        ("y = self.head(x)\n        return y[:, -2]", 3, False),
        ("y = self.head(x)\n        return y[:, -1]", 4, False),
    ],
)
def test_a_part_of_the_model_whose_last_position_is_used(tmp_path: Path, body: str, line: int, told: bool) -> None:
    text = f"class A:\n    def forward(self, x):\n        {body}\n"
    assert (last_of_all_at(at(tmp_path, text, line)) is not None) is told


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("self.rows = [torch.cat([old, new])[-9:] for old, new in zip(self.rows, more)]", "whole-copies"),
        ("self.rows = torch.cat((self.rows, new))[-9:]", "whole-copies"),
        ("self.rows = [torch.cat(parts) for parts in self.rows]", "element-by-element"),
        ("rows = [torch.cat([a, b]) for a, b in zip(these, those)]", "element-by-element"),
        ("rows = torch.cat([these, those])", None),
    ],
)
def test_a_buffer_that_is_joined_with_what_is_new(tmp_path: Path, statement: str, cause: str | None) -> None:
    found = own_cause_at(at(tmp_path, f"def add(self, new, more):\n    {statement}\n", 2), False, 1, "")
    assert (found and found.id) == cause


@pytest.mark.parametrize(
    ("function", "inside", "cause"),
    [
        ("Data.__getitem__", "zipfile.ZipExtFile._read1", "decoding"),
        ("Data.__getitem__", "PIL.ImageFile.load", "decoding"),
        ("Data.__getitem__", "numpy.read_array", "decoding"),
        ("Data.__getitem__", "torch.Tensor.__getitem__", None),
        ("Data.__getitem__", "json_of_mine", None),
        ("Data.tokenize", "", "tokenizing"),
        ("Data.read", "tokenize._tokenize", "tokenizing"),
        ("PairTokenizer.merge", "", "tokenizing"),
        ("Data.__getitem__", "scipy._zoom", "on-the-host"),
        ("Data.__getitem__", "scipy.convolve2d", "convolution-on-the-host"),
        ("Data.__getitem__", "scipy._correlate_or_convolve", "convolution-on-the-host"),
        ("Data.__getitem__", "numpy.convolve", "convolution-on-the-host"),
        ("Data.__getitem__", "scipy.oaconvolve", "on-the-host"),
        ("Data.__getitem__", "torchvision.RandomResizedCrop.forward", "on-the-host"),
        ("fit", "torchvision.ResNet.forward", None),
        ("Data.__getitem__", "sqlite3.connect", "queries"),
        ("Log.usage", "subprocess.Popen.communicate", "processes"),
        ("Data.__iter__", "random.Random.shuffle", "numbers-one-by-one"),
        ("Data.__getitem__", "random.Random.seed", None),
        ("Data.__len__", "", "length-computed"),
        ("Data.__len__.<locals>.<genexpr>", "", "length-computed"),
        ("Writer.add_histogram", "numpy.bincount", "logging"),
        ("fit", "logging.Logger._log", "logging"),
        ("act", "torch._Simplex.check", "validated-arguments"),
        ("Net.forward", "torch._Orthogonal.forward", "parametrized-again"),
        ("fit", "torch.Tensor.__format__", "tensor-as-text"),
        ("fit", "torch._Formatter.__init__", "tensor-as-text"),
        ("fit", "torch._tensor_str_with_formatter", "tensor-as-text"),
        ("Net.forward", "torch.ParametrizationList.forward", "parametrized-again"),
    ],
)
def test_a_cause_is_told_by_what_the_host_is_in_too(
    tmp_path: Path, function: str, inside: str, cause: str | None
) -> None:
    place = msgspec.structs.replace(at(tmp_path, "x = self.rows[at]", 1), function=function)
    found = cause_at(place, inside=inside)
    assert (found and found.id) == cause
    assert found is None or "{it}" not in found.instead


@pytest.mark.parametrize(
    ("made", "line", "inside", "cause"),
    [
        ("deque(maxlen=capacity)", "random.sample(self.rows, n)", "random.Random.sample", "deque-by-index"),
        ("deque(maxlen=capacity)", "random.sample(list(self.rows), n)", "", "deque-by-index"),
        ("deque(maxlen=capacity)", "random.sample(rows, n)", "random.Random.sample", "deque-by-index"),
        ("deque([], 10**6)", "[self.rows[i] for i in rng.integers(len(self), size=n)]", "", "deque-by-index"),
        ("deque(maxlen=4)", "[self.rows[i] for i in rng.integers(len(self), size=n)]", "", "element-by-element"),
        ("deque(maxlen=stack)", "torch.stack([self.rows[i] for i in picked])", "", "element-by-element"),
        ("deque(maxlen=capacity)", "self.net(self.rows[rng.choice(4)])", "torch.Linear.forward", None),
        ("[]", "random.sample(self.rows, n)", "random.Random.sample", "numbers-one-by-one"),
        ("manager.dict(rows)", "[self.rows[i] for i in ids]", "multiprocessing.Connection._recv", "manager-proxy"),
        ("Manager().dict()", "self.rows.get(i)", "multiprocessing.Connection._recv", "manager-proxy"),
        ("manager.dict()", "next(batches)", "multiprocessing.Connection._recv", None),
        ("manager.Queue()", "self.rows.get()", "multiprocessing.Connection._recv", None),
        ("dict(rows)", "self.rows[i]", "multiprocessing.Connection._recv", None),
    ],
)
def test_an_object_that_is_slow_to_ask_for_its_parts(
    tmp_path: Path, made: str, line: str, inside: str, cause: str | None
) -> None:
    text = f"""\
        class Memory:
            def __init__(self):
                self.rows = {made}
            def sample(self, rows, n):
                x = {line}
        """
    found = own_cause_at(at(tmp_path, text, 5), device=False, ranks=1, inside=inside)
    assert (found and found.id) == cause


@pytest.mark.parametrize(
    ("made", "cut", "line", "told"),
    [
        ("file.read()", "data[4 + size:]", 10, True),
        ("file.read()", "data[4 + size:]", 7, False),  # it yields first: the caller's next call has the time
        ("file.read()", "data[4 + size:]", 11, False),  # a call of its own
        ("file.read()", "data[4 + size:]", 15, False),  # no loop over it
        ("file.read()", "data[-4:]", 10, False),
        ("file.read()", "data[4:size]", 10, False),
        ("memoryview(file.read())", "data[4:]", 10, False),
        ("np.fromfile(file)", "data[4:]", 10, False),
        ("list(rows)", "data[4:]", 10, True),
    ],
)
def test_a_buffer_that_is_cut_from_its_front_takes_the_time_of_the_next_call(
    tmp_path: Path, made: str, cut: str, line: int, told: bool
) -> None:
    """Python looks at who waits for the lock at a call, and that was in the loop over the generator's pieces."""
    text = f"""\
        def records(self, path):
            data = {made}
            while data:
                size = data[0]
                body = data[4:4 + size]
                data = {cut}
                yield body, size
        def __iter__(self):
            for body, size in self.records(path):
                label = struct.unpack("<f", body[:4])
                x = zlib.decompress(body)
                yield x, label
        def other(self):
            for body in self.rows(path):
                label = struct.unpack("<f", body[:4])
        """
    found = cut_at(at(tmp_path, text, line))
    assert (found is not None) is told
    if found is not None:
        assert found[0].line == 6 and found[0].function == "records" and f"`data = {cut}`" in found[1].instead


@pytest.mark.parametrize(("line", "told"), [(4, True), (5, True), (6, False), (3, False)])
def test_a_buffer_that_is_cut_in_the_loop_itself(tmp_path: Path, line: int, told: bool) -> None:
    text = """\
        def parse(text):
            self.text = ""
            while len(self.text) > n and more():
                self.text = self.text[n:]
                out.append(self.text[:n])
                out.append(int(self.text[0]))
        """
    assert (cut_at(at(tmp_path, text, line)) is not None) is told


@pytest.mark.parametrize(
    ("body", "adds_up"),
    [
        ("x = a[t] * x + b[t]", True), ("total += r", True), ("n += 1", False), ("out.append(r)", False),
        ("text = clean(text)", False), ("out.append(sum(g ** k for k in rewards[t:]))", True),
    ],
)  # fmt: skip
def test_a_loop_that_adds_up_has_a_closed_form(tmp_path: Path, body: str, adds_up: bool) -> None:
    found = elements(at(tmp_path, f"def f():\n    for t in steps:\n        {body}\n", 3))
    assert found is not None and ("cumsum" in found.instead) is adds_up


def test_what_one_hot_made_is_multiplied_lines_later(tmp_path: Path) -> None:
    text = """        def forward(self, ids):
            hot = one_hot(ids, 9)
            rest = self.rows(ids)
            return hot.float() @ self.weight
        def loss(self, ids, out):
            hot = one_hot(ids, 9)
            return ((out - hot) ** 2).mean()
        """
    causes = [cause_at(at(tmp_path, text, line)) for line in (3, 4, 7)]
    assert [found and found.id for found in causes] == [None, "one-hot-product", None]


@pytest.mark.parametrize(
    ("line", "loop", "nested"),
    [
        (3, "enumerate(row)", True), (5, "left", False), (6, None, False), (10, None, False),
        (11, "[rows[i] for i in picked]", False), (12, "[[j for j in range(i)] for i in picked]", True),
    ],
)  # fmt: skip
def test_a_statement_of_a_loop_that_does_not_train(tmp_path: Path, line: int, loop: str | None, nested: bool) -> None:
    text = """\
        def collate(batch):
            for row in batch:
                for at, word in enumerate(row): ids[row, at] = word
            while left:
                n += 1
            return [ids, n]
        def main():
            for step in range(9):
                model(x).backward()
                buffer.add(x)
                x = torch.stack([rows[i] for i in picked])
                y = [[j for j in range(i)] for i in picked]
        """
    found = elements(at(tmp_path, text, line))
    assert (found is not None) is bool(loop) and (found is None or loop is None or f"`{loop}`" in found.instead)
    assert (elements(at(tmp_path, text, line), nested=True) is not None) is nested


@pytest.mark.parametrize(
    ("statement", "loop"),
    [
        ("return {k: s[i].roll(2, -1) for k, s in self.streams.items()}", None),
        ("return [f(k) for k in NAMES]", None), ("return [f(k) for k in ROWS]", "[f(k) for k in ROWS]"),
        ("for at in range(3): x = f(at)", None), ("for at in range(300): x = f(at)", "range(300)"),
        ("for at in range(len(x)): x[at] = 1", "range(len(x))"), ("for change in self.changes: x = change(x)", None),
        ("for k, layer in enumerate(self.net.children()): x[k] = layer", None),
        ("for k, at in zip(NAMES, indices): x[k] = rows[at]", None),
        ("for at in list(indices): x += rows[at]", "list(indices)"),
        ("for row in batch:\n    out.append({k: v + 1 for k, v in row.items()})", "batch"),
        ("x = [row[k] for k in row.keys() for row in rows]", "[row[k] for k in row.keys() for row in rows]"),
    ],
)  # fmt: skip
def test_a_loop_over_a_few_things_is_not_one_over_elements(tmp_path: Path, statement: str, loop: str | None) -> None:
    """Six streams of a sample, in a dict comprehension, were told as "single elements"."""
    text = f"NAMES = {{'accel': 3, 'gyro': 3}}\nROWS = []\ndef get(self, i):\n{indent(statement, '    ')}"
    found = elements(at(tmp_path, text, 4 + statement.count("\n")))
    assert (found is not None) is bool(loop) and (found is None or f"`{loop}`" in found.instead)


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("d = (x[:, None] - y[None]).square().sum(-1)", True),
        ("d = torch.norm(x.unsqueeze(1) - y.unsqueeze(0), dim=2)", True),
        (
            "left = x.unsqueeze(0).expand(9, 9, 3)\nright = x.unsqueeze(1)\nd = left - right",
            True,
        ),
        ("l2 = (x[:, None] - y[None]).square().sum(-1)\nk = torch.exp(-l2)", True),
        ("d = x[None] - y[None]", False),
        ("d = x.unsqueeze(1) - y", False),
        ("d = x[:, 0] - y[0]", False),
    ],
)
def test_differences_of_all_pairs(tmp_path: Path, text: str, pairs: bool) -> None:
    body = text.replace("\n", "\n    ")
    found = pairs_at(at(tmp_path, f"def f(x, y):\n    {body}", text.count("\n") + 2))
    assert found is (causes.PAIRS if pairs else None)


@pytest.mark.parametrize("statement", ["total += loss.item()", "torch.cuda.empty_cache()", "y = x.cpu().numpy()"])
def test_on_a_cpu_nobody_waits_for_a_device(tmp_path: Path, statement: str) -> None:
    assert cause_at(at(tmp_path, statement, 1)) is None and cause_at(at(tmp_path, statement, 1), device=True)


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("dist.barrier()", "barrier"),
        ("torch.distributed.all_reduce(total)", "exchange-in-loop"),
        ("y = einops.reduce(x, 'b c h w -> b c', 'mean')", None),
        ("loss = f(x) + mu * barrier(x)", None),
        ("z = functools.reduce(add, xs)", None),
    ],
)
def test_of_one_process_nobody_waits_for_ranks(tmp_path: Path, statement: str, cause: str | None) -> None:
    assert cause_at(at(tmp_path, statement, 1), device=True) is None
    found = cause_at(at(tmp_path, statement, 1), ranks=2)
    assert (found and found.id) == cause


def test_an_array_of_what_a_library_reads_is_not_told_as_one_of_a_list(tmp_path: Path) -> None:
    place = at(tmp_path, "pixels = np.array(image)", 1)
    found = cause_at(place, inside="PIL.Image.tobytes")
    assert found is not None and found.id == "decoding"
    assert cause_at(place, inside="somebodys.Image.load") is None


@pytest.mark.parametrize(
    "statement",
    [
        "x = torch.tensor(1.0)",
        "x = torch.tensor(-1)",
        "x = torch.tensor(len(batch))",
        "x = torch.tensor(loss.item())",
        "x = torch.Tensor([weight])",
        "x = torch.tensor((self.low, high[0], 2 * scale))",
        "y = model(x)",
        "loss.backward()",
        "log.info('x')",
        "opened(x)",
        "x = rng.choice(9)",
        "x = np.array(4)",
        "mean = normal.loc",
        "optimizer.step()",
    ],
)
def test_other_statements_are_not_named(tmp_path: Path, statement: str) -> None:
    assert cause_at(at(tmp_path, f"{statement}\n", 1)) is None


def test_the_line_inside_a_loop_over_parameters(tmp_path: Path) -> None:
    text = """\
        for step in range(9):
            for p in model.parameters():
                norm = p.grad.norm()
                total += norm ** 2
            y = model(x)
        """
    for line, known in ((3, True), (4, True), (5, False), (1, False)):
        assert (cause_at(at(tmp_path, text, line)) is not None) is known


def test_no_long_expression_is_repeated(tmp_path: Path) -> None:
    long = ", ".join(f"value_{n}" for n in range(40))
    found = cause_at(at(tmp_path, f"x = torch.tensor([{long}])", 1))
    assert found is not None and "..." in found.instead and "value_9" not in found.instead


@pytest.mark.parametrize("content", [b"def f(:\n", b"\xff\xfe\x00", b"x = 1\n" * 200_000, b"(" * 3000])
def test_what_can_not_be_parsed_says_nothing(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "train.py"
    file.write_bytes(content)
    assert cause_at(Place(file=str(file), line=1)) is None
    assert cause_at(Place(file=str(tmp_path / "gone.py"), line=1)) is None
    assert cause_at(Place(file="/dev/zero", line=1)) is None


def test_a_call_is_found_in_the_users_files_the_first_one(tmp_path: Path) -> None:
    script, net = tmp_path / "train.py", tmp_path / "net.py"
    script.write_text("import torch\ntorch.autograd.set_detect_anomaly(True)\nset_detect_anomaly(False)\n")
    net.write_text("def f():\n    return nn.Embedding(10, 2)\n")
    root = RootFacts(name="Net", parameters=1, modules=1, file=str(net))
    facts = msgspec.structs.replace(FACTS, argv=(str(script),), roots=(root,))
    assert call_of(facts, ["set_detect_anomaly"]) == Place(file=str(script), line=2)
    assert call_of(facts, ["Embedding"]) == Place(file=str(net), line=2, function="f")
    assert call_of(facts, ["absent"]) is None and call_of(None, ["absent"]) is None


def test_of_installed_source_only_a_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that is quoted is of a line; a search of a library that finds nothing tells nothing."""
    installed, other = json.__file__, at(tmp_path, "import json\n", 1).file
    facts = msgspec.structs.replace(FACTS, argv=(installed,))
    (tmp_path / "else").mkdir()
    monkeypatch.chdir(tmp_path / "else")
    with reading_here() as refused:
        assert parsed(installed) is not None and call_of(facts, ("no_such_call",)) is None and refused == set()
        assert parsed(other) is None and refused == {other}
        call_of(facts, ("JSONEncoder",))
        assert refused == {other, installed}, "where it is found, a line is told"
        assert statement_at(Place(file=installed, line=1)) is None and lines_of(Path(installed)) == []


def test_each_cause_has_one_row_and_says_what_to_write() -> None:
    ids = [one.cause.id for one in KNOWN]
    assert len(ids) == len(set(ids))
    for one in KNOWN:
        assert one.ends or one.whole or one.packages or one.inside
        assert all((one.cause.title, one.cause.why, one.cause.instead))


def test_advice_is_short_and_says_nothing_twice() -> None:
    """One change for the line, not all that may help: texts of 60 to 90 words were told, with parts of them twice."""
    held = [one for module in (causes, repeated, known_ops, seldom_used) for one in vars(module).values()]
    known = [one.cause for one in causes.KNOWN] + [one for one in held if isinstance(one, causes.Cause)]
    assert len(known) > 40
    assert [one.id for one in known if len(one.instead.split()) > 45] == []
    assert len(small_ops.INSTEAD.split()) <= 45
    for one in known:
        parts = re.split("; |: ", one.instead)
        assert len(set(parts)) == len(parts)
