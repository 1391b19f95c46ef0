"""Alembic's entry: migrations run inside the transaction that `storage/database/migrate.py` hands over."""

from alembic import context

from stepwell_server.storage.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
