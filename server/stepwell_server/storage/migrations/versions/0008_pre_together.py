"""A function that executes prepared statements one after the other, so that they cost one round trip together."""

from alembic import op

revision = "0008"
down_revision = "0007"

# Volatile: each statement sees what was committed before it began, and waits for the locks of the one before.
_TOGETHER = """
CREATE FUNCTION together_v1(calls text[]) RETURNS TABLE (place integer, item record)
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
  FOR turn IN 1 .. cardinality(calls) LOOP
    place := turn;
    FOR item IN EXECUTE calls[turn] LOOP
      RETURN NEXT;
    END LOOP;
  END LOOP;
END
$$
"""


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(_TOGETHER)
