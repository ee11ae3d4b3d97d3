"""Series, environments, runs."""

import sqlalchemy as sa
from alembic import op

revision = "r001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "hotlap_series",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(32), nullable=False, unique=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("kind", "project", "command", "levers", "host")),
        sa.Column("device", sa.Text, nullable=False),
        sa.Column("last", sa.Double, nullable=False),
    )
    op.create_table(
        "hotlap_environments",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("key", sa.String(32), nullable=False, unique=True),
        sa.Column("environment", sa.Text, nullable=False),
        sa.Column("versions", sa.Text, nullable=False),
    )
    op.create_table(
        "hotlap_runs",
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
        *(sa.Column(name, sa.Double) for name in ("wall_s", "step_ms", "p10_ms", "p90_ms")),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("phases", sa.Text, nullable=False),
        sa.Column("throughput", sa.Double),
        sa.Column("throughput_unit", sa.Text, nullable=False),
        *(sa.Column(name, sa.Double) for name in ("peak_bytes", "startup_s")),
        *(sa.Column(name, sa.Text) for name in ("bound", "finding")),
        *(sa.Column(name, sa.Double) for name in ("ratio", "ratio_low", "ratio_high")),
        sa.Column("cwd", sa.Text, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
    )
    op.create_index("hotlap_series_last", "hotlap_series", ["last"])
    op.create_index("hotlap_series_project", "hotlap_series", ["project", "last"])
    op.create_index("hotlap_runs_series", "hotlap_runs", ["series", "started"])
    op.create_index("hotlap_runs_started", "hotlap_runs", ["started"])
    op.create_index("hotlap_runs_commit", "hotlap_runs", ["git_commit", "started"])
