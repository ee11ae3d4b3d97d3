"""The tables of the history, as the newest migration leaves them. Nothing imports this before a history is opened."""

from typing import Final

import sqlalchemy as sa

HEAD: Final = "r001"
"""The newest migration; a test holds the two together."""
SCHEMA: Final = "hotlap_schema"
"""Where the migration that a database is at stands: a name of hotlap's own, since a shared database has others' too."""

metadata = sa.MetaData()
series = sa.Table(
    "hotlap_series",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(32), nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("project", sa.Text, nullable=False),
    sa.Column("command", sa.Text, nullable=False),
    sa.Column("levers", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("device", sa.Text, nullable=False),
    sa.Column("last", sa.Double, nullable=False),
)
environments = sa.Table(
    "hotlap_environments",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(32), nullable=False, unique=True),
    sa.Column("environment", sa.Text, nullable=False),
    sa.Column("versions", sa.Text, nullable=False),
)
runs = sa.Table(
    "hotlap_runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.String(32), nullable=False, unique=True),
    sa.Column("series", sa.Integer, sa.ForeignKey("hotlap_series.id"), nullable=False),
    sa.Column("environment", sa.Integer, sa.ForeignKey("hotlap_environments.id"), nullable=False),
    sa.Column("added", sa.Double, nullable=False),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("git_commit", sa.Text),
    sa.Column("commit_time", sa.Double),
    sa.Column("dirty", sa.Boolean),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("exit_code", sa.BigInteger),
    sa.Column("torch", sa.Text),
    sa.Column("wall_s", sa.Double),
    sa.Column("step_ms", sa.Double),
    sa.Column("p10_ms", sa.Double),
    sa.Column("p90_ms", sa.Double),
    sa.Column("steps", sa.BigInteger, nullable=False),
    sa.Column("phases", sa.Text, nullable=False),
    sa.Column("throughput", sa.Double),
    sa.Column("throughput_unit", sa.Text, nullable=False),
    sa.Column("peak_bytes", sa.Double),
    sa.Column("startup_s", sa.Double),
    sa.Column("bound", sa.Text),
    sa.Column("finding", sa.Text),
    sa.Column("ratio", sa.Double),
    sa.Column("ratio_low", sa.Double),
    sa.Column("ratio_high", sa.Double),
    sa.Column("cwd", sa.Text, nullable=False),
    sa.Column("folder", sa.Text, nullable=False),
)
sa.Index("hotlap_series_last", series.c.last)
sa.Index("hotlap_series_project", series.c.project, series.c.last)
sa.Index("hotlap_runs_series", runs.c.series, runs.c.started)
sa.Index("hotlap_runs_started", runs.c.started)
sa.Index("hotlap_runs_commit", runs.c.git_commit, runs.c.started)
