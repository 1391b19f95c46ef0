"""When names of handlers were last used."""

import sqlalchemy as sa
from alembic import op

from stepwell_server.storage.database.clock import db_now

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.add_column("handlers", sa.Column("used_at", sa.BigInteger(), nullable=False, server_default="0"))
    op.execute(sa.update(sa.table("handlers", sa.column("used_at"))).values(used_at=db_now()))
