"""SQL over the tables of a trace, for questions that no analysis asks."""

import re
from typing import Final

import polars as pl

from hotlap.records.errors import UsageError

from .tables import TABLES, Trace

READERS: Final = re.compile("read_(csv|parquet|json|ndjson|ipc)", re.IGNORECASE)
"""Table functions of the dialect that would read files, however they are written."""


def query(traces: list[tuple[int, Trace]], text: str) -> pl.DataFrame:
    """The rows that a SELECT yields. Every table has columns `rank` and `row` first. Raises UsageError for no query.

    The dialect is that of polars' SQLContext. It reads the given tables only: no files, no writing.
    """
    frames = {}
    for name in TABLES:
        parts = [
            table.with_row_index("row").select(
                pl.lit(rank, pl.Int64).alias("rank"), pl.col("row").cast(pl.Int32), pl.exclude("row")
            )
            for rank, trace in traces
            if (table := getattr(trace, name)) is not None
        ]
        frames[name] = pl.concat(parts)
    words = text.strip().rstrip(";").split(None, 1)
    if not words or words[0].lower() not in {"select", "with"}:
        raise UsageError("--sql takes one SELECT")
    if READERS.search(text):
        raise UsageError("--sql reads the tables of the trace only, no files")
    try:
        with pl.SQLContext(frames=frames) as context:
            return context.execute(text, eager=True)
    except (pl.exceptions.PolarsError, ValueError) as error:
        raise UsageError(f"--sql: {error}. Tables: {', '.join(TABLES)}; columns are in docs/trace.md") from error
