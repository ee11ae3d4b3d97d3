"""What the runs of the zoo say: step times and losses from printed lines, ratios, and the tables of the docs.

Everything here is a function of rows as `benchmarks/zoo.py` writes them; nothing is run.
"""

import math
import re
from collections.abc import Sequence
from statistics import median
from typing import Any

LINE = re.compile(r"^step (\d+) (.*) ([\d.]+) ms/step\s*$", re.MULTILINE)
VALUE = re.compile(r"(\S+) (-?[\d.]+|-?nan|-?inf)(?= |$)")
WARMUP = 3
"""One part in so many of the printed lines is left out at the start: compiling, first allocations, autotuning."""
SPEED = (
    "script",
    "bound",
    "naive ms",
    "hand ms",
    "compile ms",
    "hotlap ms",
    "hand over naive",
    "torch.compile alone over naive",
    "hotlap over naive (95%)",
    "hotlap over hand (95%)",
)
DETAILS = (
    "script",
    "kept",
    "tune said",
    "parity",
    "losses apart from naive: hotlap / hand",
    "peak GiB: naive / hand / hotlap",
    "tune took",
    "compile cache at its start",
    "break-even steps",
)
SIDES = ("side", "ms a step", "each run", "over {} (95%)", "losses apart from {}", "told")
SMALL = 1.1
"""A ratio by hand that may reach this has something to win."""
TOLD = 160
"""Characters that the table of sides tells of a side; its row has all of them."""
Row = dict[str, Any]
Lines = dict[int, tuple[dict[str, float], float]]


def printed(text: str) -> Lines:
    """By step, the values that a script printed and its ms a step since the line before."""
    return {
        int(step): ({name: float(value) for name, value in VALUE.findall(values)}, float(ms))
        for step, values, ms in LINE.findall(text)
    }


def step_ms(lines: Lines) -> float:
    """Median over the printed lines after the warm-up. Raises ValueError if there are fewer than three lines."""
    times = [ms for _, ms in lines.values()]
    if len(times) < WARMUP:
        raise ValueError(f"only {len(times)} lines with ms/step were printed")
    return median(times[max(1, len(times) // WARMUP) :])


def loss_gap(one: Lines, other: Lines) -> float | None:
    """Root mean square of what losses differ at the same steps, over the mean loss; the largest of several losses."""
    gaps = []
    steps = sorted(one.keys() & other.keys())
    for name in {name for step in steps for name in one[step][0] if name.startswith("loss")}:
        pairs = [(one[s][0].get(name, math.nan), other[s][0].get(name, math.nan)) for s in steps]
        scale = sum(abs(a) for a, _ in pairs) / len(pairs)
        gaps.append(math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs)) / (scale or 1.0))
    # max() would pass over NaN, depending on where it stands.
    return None if not gaps else math.nan if any(map(math.isnan, gaps)) else max(gaps)


def times(row: Row, kind: str) -> dict[int, float]:
    """Step time of each measured run of a kind, by round."""
    return {run["round"]: run["step_ms"] for run in row["runs"].get(kind, ()) if "step_ms" in run}


def ratio(row: Row, slow: str, fast: str) -> Row | None:
    """`slow` over `fast` from the rounds in which both were measured; its interval where there are two at least."""
    a, b = times(row, slow), times(row, fast)
    rounds = sorted(a.keys() & b.keys())
    if not rounds:
        return None
    from hotlap.experiment.statistics import of_pairs  # not for `check`, which needs no statistics

    found = of_pairs([math.log(a[r] / b[r]) for r in rounds])
    low, high = (found.interval.low, found.interval.high) if found.interval else (None, None)
    return {"ratio": found.ratio, "low": low, "high": high, "pairs": len(rounds)}


def compile_kind(row: Row) -> str | None:
    """The mode of torch.compile that was kept after the first round, so the one with the most runs; else the faster."""
    found = {kind: times(row, kind) for kind in row["runs"] if kind.startswith("compile")}
    order = [(-len(runs), median(runs.values()), kind) for kind, runs in found.items() if runs]
    return min(order)[2] if order else None


def ratios(row: Row) -> Row:
    """All ratios of a row. A tune that kept nothing leaves the naive script, so hotlap stands for naive there."""
    ours = "hotlap" if row["runs"].get("hotlap") or row["tune"].get("kept") else "naive"
    alone = compile_kind(row)
    pairs = {
        "hand_over_naive": ("naive", "hand"),
        "compile_over_naive": ("naive", alone),
        "hotlap_over_naive": ("naive", ours),
        "hotlap_over_hand": ("hand", ours),
        "hotlap_over_compile": (alone, ours),
    }
    return {name: ratio(row, slow, fast) if slow and fast else None for name, (slow, fast) in pairs.items()}


def spans_one(found: Row | None) -> bool:
    """Whether a ratio can not be told from 1."""
    return found is not None and found["low"] is not None and found["low"] <= 1 <= found["high"]


def geometric_mean(values: Sequence[float]) -> float:
    """Raises ValueError for none."""
    if not values:
        raise ValueError("no values")
    return math.exp(sum(map(math.log, values)) / len(values))


def shown(found: Row | None) -> str:
    """A ratio as text: 3.10× (2.95–3.26)."""
    if found is None:
        return "–"
    if found["low"] is None:
        return f"{found['ratio']:.2f}× (one pair)"
    return f"{found['ratio']:.2f}× ({found['low']:.2f}–{found['high']:.2f})"


def _ms(row: Row, kind: str | None) -> str:
    found = list(times(row, kind).values()) if kind else []
    return f"{median(found):.3g}" if found else "–"


def _memory(row: Row, kind: str) -> str:
    found = [run["peak_memory_bytes"] for run in row["runs"].get(kind, ()) if run.get("peak_memory_bytes")]
    return f"{max(found) / 2**30:.2f}" if found else "–"


def nothing_to_win(row: Row) -> bool:
    """Neither hotlap nor the rewrite by hand is told from the naive script, and by hand it is no large gain unseen."""
    hand, ours = row["ratios"].get("hand_over_naive"), row["ratios"].get("hotlap_over_naive")
    kept = row["tune"].get("kept")
    return spans_one(hand) and hand["high"] < SMALL and (not kept or spans_one(ours))


def _verdict(row: Row) -> str:
    """hotlap's ratio over naive, or what is to be said instead."""
    ours = row["ratios"]["hotlap_over_naive"]
    if "error" in row["tune"]:
        return "tune failed"
    if row["tune"].get("kept") and not spans_one(ours):
        return shown(ours)
    said = "nothing to win here" if nothing_to_win(row) else "no gain shown"
    return f"{said}: {shown(ours)}" if row["tune"].get("kept") else f"{said}, nothing kept"


def _speed_row(row: Row) -> str:
    alone = compile_kind(row)
    cells = [
        row["script"],
        row["tune"].get("bound", "–"),
        _ms(row, "naive"),
        _ms(row, "hand"),
        _ms(row, alone),
        _ms(row, "hotlap") if row["tune"].get("kept") else _ms(row, "naive"),
        shown(row["ratios"]["hand_over_naive"]),
        shown(row["ratios"]["compile_over_naive"]) + (", graphs" if alone == "compile-graphs" else ""),
        _verdict(row),
        shown(row["ratios"]["hotlap_over_hand"]),
    ]
    return "| " + " | ".join(cells) + " |"


def _settings(lever: Row) -> str:
    values = ", ".join(f"{name}={value}" for name, value in lever.get("settings", {}).items())
    return f"{lever['lever']} ({values})" if values else str(lever["lever"])


def _gap(row: Row, kind: str | None) -> str:
    gaps = [run["loss_gap"] for run in row["runs"].get(kind, ()) if run.get("loss_gap") is not None] if kind else []
    return f"{max(gaps):.1e}" if gaps else "–"


def _said(tune: Row) -> str:
    """The speed-up that hotlap itself stated."""
    if not tune.get("speedup"):
        return "–"
    return shown({"ratio": tune["speedup"], **(tune.get("interval") or {"low": None})})


def _detail_row(row: Row) -> str:
    tune = row["tune"]
    parity = tune.get("parity") or {}
    took = f"{tune['wall_s']:.0f} s, {tune['trials']} trials" if "wall_s" in tune else "–"
    cells = [
        row["script"],
        "; ".join(map(_settings, tune.get("kept", ()))) or "nothing",
        _said(tune),
        (f"{parity['level']}, {parity['steps']} steps" if parity.get("ok") else "–"),
        f"{_gap(row, 'hotlap')} / {_gap(row, 'hand')}",
        " / ".join(_memory(row, kind) for kind in ("naive", "hand", "hotlap")),
        took + ("" if tune.get("complete", True) else ", budget ended"),
        row["cache"],
        str(tune["break_even_steps"]) if tune.get("break_even_steps") is not None else "–",
    ]
    return "| " + " | ".join(cells) + " |"


def _head(names: Sequence[str]) -> list[str]:
    return ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]


def _known(rows: Sequence[Row], name: str) -> dict[str, float]:
    return {row["script"]: row["ratios"][name]["ratio"] for row in rows if row["ratios"].get(name)}


def summary(rows: Sequence[Row]) -> list[str]:
    """The lines under the tables: geometric means, the worst script, torch.compile alone."""
    naive, hand, alone = (_known(rows, f"hotlap_over_{other}") for other in ("naive", "hand", "compile"))
    lines = []
    if naive:
        lines.append(f"Geometric mean over naive: {geometric_mean([*naive.values()]):.2f}× ({len(naive)} scripts).")
    if hand:
        worst = min(hand, key=lambda name: hand[name])
        lines.append(
            f"Of hand: {geometric_mean([*hand.values()]):.2f}× on the geometric mean ({len(hand)} scripts); "
            f"the worst is {worst}, {hand[worst]:.2f}×."
        )
    if alone:
        lines.append(_against_compile(rows))
    nothing = [row["script"] for row in rows if nothing_to_win(row)]
    if nothing:
        lines.append(f"Nothing to win here, by hand neither: {', '.join(nothing)}.")
    failed = [f"{row['script']} ({kind})" for row in rows for kind, runs in row["runs"].items() if _failed(runs)]
    if failed:
        lines.append(f"Could not be measured: {', '.join(failed)}.")
    return lines


def _against_compile(rows: Sequence[Row]) -> str:
    """Where hotlap is ahead of torch.compile alone, behind it, or not told from it."""
    found = {
        row["script"]: row["ratios"]["hotlap_over_compile"] for row in rows if row["ratios"]["hotlap_over_compile"]
    }
    level = [name for name, value in found.items() if spans_one(value)]
    behind = [name for name, value in found.items() if value["ratio"] < 1 and name not in level]
    said = f"Ahead of torch.compile alone on {len(found) - len(level) - len(behind)} of {len(found)} scripts"
    said += f"; not told apart on {', '.join(level)}" if level else ""
    return said + (f"; behind on {', '.join(behind)}." if behind else ".")


def _failed(runs: Sequence[Row]) -> bool:
    return any("error" in run for run in runs) and not any("step_ms" in run for run in runs)


def _told(side: Row) -> str:
    """Levers that gave up, errors, and problems of a side: the beginning and the end of what there is to tell."""
    levers = [lever for run in side["runs"] for lever in run.get("levers", ())]
    found = [f"left out: {lever['lever']}, {lever['left_out']}" for lever in levers if "left_out" in lever]
    found += [run[name] for name in ("error", "problems") for run in side["runs"] if run.get(name)]
    text = " ".join("; ".join(dict.fromkeys(found)).replace("|", "/").split())
    return text if len(text) <= TOLD else f"{text[: TOLD // 2]} … {text[-TOLD // 2 :]}"


def sides_markdown(row: Row) -> str:
    """The table of one call of `zoo.py sides`; ratios are of the first side over each other."""
    sides = row["sides"]
    # By place: a side may stand twice.
    runs: Row = {"runs": {str(place): side["runs"] for place, side in enumerate(sides)}}
    lines = [f"{row['script']}, {row['steps']} steps; {row['device']}, {row['cores']} cores, torch {row['torch']}, "]
    lines[0] += f"{row['date']}; compile cache {row['cache']}"
    lines += [row["rounds_why"]] if "rounds_why" in row else []
    lines += ["", *_head([name.format(sides[0]["name"]) for name in SIDES])]
    for place, side in enumerate(sides):
        each = [f"{ms:.3g}" for ms in times(runs, str(place)).values()]
        over = shown(ratio(runs, "0", str(place))) if place else "–"
        cells = [side["name"], _ms(runs, str(place)), ", ".join(each) or "–", over, _gap(runs, str(place)), _told(side)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def markdown(document: Row) -> str:
    """The tables of a results file."""
    tables = [sides_markdown(row) for row in document.get("sides", ())]
    if document.get("scripts") or not tables:
        tables.append(_scripts_markdown(document))
    return "\n".join(tables)


def _scripts_markdown(document: Row) -> str:
    rows = document.get("scripts", [])
    speed, details = _head(SPEED), _head(DETAILS)
    speed += map(_speed_row, rows)
    details += map(_detail_row, rows)
    machines = sorted({f"{row['device']}, {row['cores']} cores, torch {row['torch']}, {row['date']}" for row in rows})
    return "\n".join([*machines, "", *speed, "", *details, "", *summary(rows), ""])
