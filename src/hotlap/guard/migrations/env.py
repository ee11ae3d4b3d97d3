"""What alembic runs: the migrations that are missing, in the transaction that it was given."""

from alembic import context

from hotlap.guard.tables import SCHEMA

context.configure(connection=context.config.attributes["connection"], version_table=SCHEMA)
context.run_migrations()
