"""Each lever for memory, precision and regional compilation on one GPT: peak memory, step time, loss, start.

    python benchmarks/memory_levers.py --out benchmarks/results/memory-levers-h100.json      # some 10 minutes on a GPU
    python benchmarks/memory_levers.py --tiny --only checkpoint-blocks                       # on a CPU, to see it work
    hotlap tune python benchmarks/memory_levers.py train --batch 32 --gib 16                 # runs out of memory
    python benchmarks/memory_levers.py public --root CHECKOUTS --out FILE                    # of others, on a CPU

Fresh processes, the bare command first and last. Compilation starts from an empty cache, and then once more from what
the first left there. Peaks are of torch's allocator. The losses of `exact` levers must be the bare command's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from fit_predictions import started
from zoo_runs import machine

import hotlap
from hotlap.memory.usage import usage

Levers = dict[str, dict[str, Any]]
COMPILE: Levers = {"compile": {"mode": "default"}}
CASES: dict[str, Levers] = {
    "bare": {},
    "allocator": {"allocator": {"conf": "expandable_segments:True"}},
    **{f"checkpoint-blocks {k}": {"checkpoint-blocks": {"every": k}} for k in (4, 2, 1)},
    **{f"activation-offload {m} MiB": {"activation-offload": {"least_mib": m}} for m in (16, 1)},
    "optimizer-offload": {"optimizer-offload": {}},
    **{f"accumulate {n}": {"accumulate": {"parts": n}} for n in (2, 4)},
    "batch-size 2": {"batch-size": {"times": 2}},
    "bf16-autocast": {"bf16-autocast": {}},
    "compile": COMPILE,
    "compile, warm": COMPILE,
    "compile-blocks": {"compile-blocks": {"shapes": "automatic"}},
    "compile-blocks, warm": {"compile-blocks": {"shapes": "automatic"}},
    "compile-blocks, dynamic": {"compile-blocks": {"shapes": "dynamic"}},
    **{f"compile, budget {b}": {**COMPILE, "activation-budget": {"budget": b}} for b in (0.8, 0.5, 0.3)},
    "compile, checkpoint-blocks 1": {**COMPILE, "checkpoint-blocks": {"every": 1}},
    "bare again": {},
}


PUBLIC: dict[str, Levers] = {
    "bare": {},
    **{f"linear-cross-entropy {n}": {"linear-cross-entropy": {"parts": n}} for n in (8, 32)},
}


def train(batch: int, tiny: bool, gib: float) -> None:
    """The script, as a user writes it. gib: of the GPU's memory, all that it may use; 0 for no limit."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    layers, width, length, words = (4, 64, 64, 128) if tiny else (12, 1024, 512, 32000)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if gib and device == "cuda":
        torch.cuda.set_per_process_memory_fraction(gib * 2**30 / torch.cuda.get_device_properties(0).total_memory)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Any) -> Any:
            rows, time, _ = x.shape
            q, k, v = (
                y.view(rows, time, width // 64, 64).transpose(1, 2) for y in self.qkv(self.norm(x)).split(width, 2)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.drop(self.out(y.transpose(1, 2).reshape(rows, time, width)))
            return x + self.drop(self.mlp(self.norm2(x)))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, tokens: Any) -> Any:
            x = self.words(tokens) + self.places.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = Gpt().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    tokens = torch.randint(0, words, (batch * 100, length + 1))
    for some in torch.utils.data.DataLoader(tokens, batch, shuffle=True, drop_last=True):
        rows = some.to(device)
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def measure(name: str, levers: Levers, batch: int, tiny: bool, cache: Path) -> dict[str, Any]:
    """One run of the script under hotlap with some levers."""
    with tempfile.TemporaryDirectory() as folder:
        recipe, out = recipe_of(levers, Path(folder)), Path(folder) / "run"
        command = [sys.executable, __file__, "train", "--batch", str(batch), *(["--tiny"] if tiny else [])]
        done = subprocess.run(
            [sys.executable, "-m", "hotlap", "run", "--out", out, "--recipe", recipe, "--steps", "20", *command],
            env={**os.environ, "HOTLAP_CACHE": str(cache)}, capture_output=True, text=True, check=False, timeout=900,
        )  # fmt: skip
        return {"case": name, "levers": levers, **read(out, done)}


def recipe_of(levers: Levers, folder: Path) -> Path:
    """Levers as a file."""
    lines = ["format = 1", 'hotlap = "0"']
    for lever, settings in levers.items():
        pairs = ", ".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
        lines += ["[[lever]]", f'name = "{lever}"', f"settings = {{ {pairs} }}"]
    recipe = folder / "recipe.toml"
    recipe.write_text("\n".join(lines))
    return recipe


def measure_public(name: str, row: dict[str, Any], case: str, roots: list[Path]) -> dict[str, Any]:
    """One run of a public script: the peak of a step's tensors in MiB, the step in ms, its first losses."""
    folder, command, environment = started(row, roots)
    with tempfile.TemporaryDirectory() as made:
        out = Path(made) / "run"
        words = [sys.executable, "-m", "hotlap", "run", "--memory", "--steps", "12", "--out", str(out), "--recipe"]
        words += [str(recipe_of(PUBLIC[case], Path(made))), *command]
        done = subprocess.run(
            words, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=900
        )
        found = read(out, done)
        if "failed" in found:
            return {"name": name, "case": case, **found}
        window = hotlap.open_run(out).ranks[0].memory()
        peak = usage(window) if window is not None else None
        keep = {key: found[key] for key in ("step_ms", "losses", "problems")}
        where = {"peak_mib": peak.peak_bytes / 2**20, "phase": peak.phase} if peak is not None else {}
        return {"name": name, "case": case, **where, **keep, "losses": keep["losses"][:10]}


def public(roots: list[Path], only: str | None, out: Path | None) -> None:
    """Each public script, bare and with levers."""
    scripts = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
    rows: list[dict[str, Any]] = []
    for name, row in scripts.items():
        if only and not name.startswith(only):
            continue
        for case in PUBLIC:
            rows.append(measure_public(name, row, case, roots))
            print({key: value for key, value in rows[-1].items() if key != "losses"}, flush=True)
            if out:
                out.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


def read(out: Path, done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    """What the run recorded; the end of its output where it failed."""
    problems = out / "rank-0" / "problems.jsonl"
    said = [json.loads(line)["what"] for line in problems.read_text().splitlines()] if problems.exists() else []
    try:
        diagnosis = json.loads((out / "diagnosis.json").read_bytes())
        facts = json.loads((out / "rank-0" / "facts.json").read_bytes())
        steps = [json.loads(line) for line in (out / "rank-0" / "steps.jsonl").read_text().splitlines()]
    except OSError:
        return {"failed": (done.stdout + done.stderr)[-500:], "problems": said}
    return {
        "step_ms": diagnosis["step_ms"],
        "samples_s": diagnosis["throughput"],
        "peak_gib": (facts.get("peak_memory_bytes") or 0) / 2**30,
        "memory": facts.get("memory"),
        "first_step_s": steps[0]["wall_ms"] / 1000,
        "losses": [step["loss"] for step in steps[:20]],
        "problems": said,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["train", "public"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--gib", type=float, default=0, help="of the GPU's memory, all that `train` may use")
    parser.add_argument("--only", help="cases whose names begin so; bare is always among them")
    parser.add_argument("--root", type=Path, action="append", default=[], help="of checkouts, for `public`")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.what == "train":
        train(args.batch, args.tiny, args.gib)
        return
    if args.what == "public":
        public(args.root, args.only, args.out)
        return
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        for name, levers in CASES.items():
            if args.only and name != "bare" and not name.startswith(args.only):
                continue
            row = measure(name, levers, args.batch, args.tiny, Path(cache) / name.removesuffix(", warm"))
            rows.append(row)
            print(line(row, rows[0]), flush=True)
            if args.out:
                args.out.write_text(json.dumps(rows, indent=1))


def line(row: dict[str, Any], bare: dict[str, Any]) -> str:
    """A row of the table."""
    if "failed" in row:
        return f"{row['case']:30} failed: {row['failed'].splitlines()[-1:]} {row['problems']}"
    gaps = [abs(a - b) / abs(b) for a, b in zip(row["losses"], bare.get("losses", []), strict=False) if a and b]
    return (
        f"{row['case']:30} {row['peak_gib']:6.2f} GiB {row['step_ms']:8.1f} ms {row['samples_s'] or 0:8.1f} samples/s "
        f"first step {row['first_step_s']:6.1f} s  loss gap {max(gaps, default=0):.1e} {row['problems'] or ''}"
    )


if __name__ == "__main__":
    main()
