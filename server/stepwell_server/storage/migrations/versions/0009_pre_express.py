"""Functions that store reports and births of runs in one round trip, without reading what the replica knows."""

from alembic import op

revision = "0009"
down_revision = "0008"

_CLOCKS = """
  lease_stamp := CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS BIGINT);
  stamp := coalesce((SELECT virtual_now FROM clock WHERE id = 1), lease_stamp);
"""

# Lock, stamp, look, write: each a later statement with a snapshot of its own. The lock tests columns of the row that it
# locks and nothing else. `status || ''`: the partial index of held tasks would be walked once for each of them. Writes
# find rows by their places, which is right because an earlier statement of the transaction has locked them.
_REPORTS = f"""
CREATE FUNCTION express_reports_v1(
  ids bigint[], fences bigint[], revisions bigint[], frames bigint[],
  new_frames bigint[], new_revisions bigint[], new_counts integer[], new_open text[], lease bigint,
  named_ids bigint[], named_runs integer[], named text[],
  step_ids bigint[], step_runs integer[], step_names text[], step_revisions bigint[], step_results text[],
  step_max_attempts integer[], step_delays bigint[], step_backoffs text[], step_max_delays bigint[],
  step_timeouts bigint[],
  end_ids bigint[], end_statuses text[], end_revisions bigint[], end_fences bigint[], end_outputs text[],
  end_names text[], end_messages text[], end_details text[], end_final boolean[]
) RETURNS TABLE (stamp bigint, lease_stamp bigint, done bigint[])
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  known bigint[];
  removed bigint[];
  written integer;
BEGIN
  done := ARRAY(
    SELECT held.id FROM unnest(ids, fences, revisions, frames) AS image(id, fence, revision, frame)
    CROSS JOIN LATERAL (
      SELECT tasks.id FROM tasks
      WHERE tasks.id = image.id AND tasks.fence = image.fence AND tasks.revision = image.revision
        AND tasks.frame_number = image.frame AND tasks.status || '' = 'processing' AND tasks.stop = 'none'
        AND NOT tasks.wake_again
      FOR NO KEY UPDATE SKIP LOCKED
    ) AS held
  );
{_CLOCKS}
  known := ARRAY(
    SELECT step.task_id FROM unnest(named_ids, named_runs, named) AS wanted(id, run, name)
    CROSS JOIN LATERAL (
      SELECT workflow_steps.task_id FROM workflow_steps
      WHERE workflow_steps.task_id = wanted.id AND workflow_steps.run_number = wanted.run
        AND workflow_steps.name = wanted.name
      OFFSET 0
    ) AS step
  );
  IF cardinality(known) > 0 THEN
    done := ARRAY(SELECT one FROM unnest(done) AS one WHERE one <> ALL(known));
  END IF;
  removed := ARRAY(SELECT one FROM unnest(end_ids) AS one WHERE one = ANY(done));
  UPDATE tasks SET frame_number = placed.frame, revision = placed.revision, step_count = placed.count,
    open_steps = placed.open, interruptions = 0, acked = true, locked_until = lease_stamp + lease
  FROM (
    SELECT given.*, place.ctid AS place
    FROM unnest(ids, new_frames, new_revisions, new_counts, new_open) AS given(id, frame, revision, count, open)
    CROSS JOIN LATERAL (SELECT tasks.ctid FROM tasks WHERE tasks.id = given.id OFFSET 0) AS place
    WHERE given.id = ANY(done) AND given.id <> ALL(removed)
  ) AS placed
  WHERE tasks.ctid = placed.place;
  GET DIAGNOSTICS written = ROW_COUNT;
  IF written <> cardinality(done) - cardinality(removed) THEN
    RAISE EXCEPTION 'wrote % tasks of %', written, cardinality(done) - cardinality(removed);
  END IF;
  IF cardinality(step_ids) > 0 THEN
    INSERT INTO workflow_steps (task_id, run_number, name, position, revision, type, status, attempts, max_attempts,
      retry_delay, retry_backoff, retry_max_delay, timeout, event_type, result, created_at, updated_at)
    SELECT step.id, step.run, step.name, step.revision, step.revision, 'do', 'completed', 1, step.most, step.delay,
      step.backoff, step.max_delay, step.timeout, '', step.result, stamp, stamp
    FROM unnest(step_ids, step_runs, step_names, step_revisions, step_results, step_max_attempts, step_delays,
      step_backoffs, step_max_delays, step_timeouts)
      AS step(id, run, name, revision, result, most, delay, backoff, max_delay, timeout)
    WHERE step.id = ANY(done);
  END IF;
  IF cardinality(removed) > 0 THEN
    DELETE FROM tasks WHERE id = ANY(removed);
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> cardinality(removed) THEN
      RAISE EXCEPTION 'removed % tasks of %', written, cardinality(removed);
    END IF;
    UPDATE workflow_instances SET status = placed.status, output = placed.output, error_name = placed.name,
      error_message = placed.message, error_details = placed.details, error_non_retryable = placed.final,
      revision = placed.revision, ended_fence = placed.fence, ended_at = stamp, updated_at = stamp
    FROM (
      SELECT given.*, place.ctid AS place
      FROM unnest(end_ids, end_statuses, end_revisions, end_fences, end_outputs, end_names, end_messages, end_details,
        end_final) AS given(id, status, revision, fence, output, name, message, details, final)
      CROSS JOIN LATERAL (
        SELECT workflow_instances.ctid FROM workflow_instances WHERE workflow_instances.id = given.id OFFSET 0
      ) AS place
      WHERE given.id = ANY(removed)
    ) AS placed
    WHERE workflow_instances.ctid = placed.place;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> cardinality(removed) THEN
      RAISE EXCEPTION 'ended % instances of %', written, cardinality(removed);
    END IF;
  END IF;
  RETURN NEXT;
END
$$
"""

# The rows come in the order of their keys, in which everybody inserts. Their numbers are in the order of the calls.
_BIRTHS = f"""
CREATE FUNCTION express_births_v1(
  namespaces text[], workflows text[], instance_ids text[], given_params text[], request_ids text[],
  request_hashes text[], sessions text[], connections bigint[], turns integer[], new_priority integer,
  ack_window bigint
) RETURNS TABLE (stamp bigint, lease_stamp bigint, ids bigint[], fences bigint[], born bigint[])
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
  drawn bigint[];
BEGIN
{_CLOCKS}
  drawn := ARRAY(SELECT nextval('fences') FROM generate_series(1, cardinality(turns)));
  ids := ARRAY(SELECT drawn[turn] FROM unnest(turns) WITH ORDINALITY AS one(turn, place) ORDER BY place);
  fences := ARRAY(SELECT CASE WHEN one IS NULL THEN 0 ELSE nextval('fences') END
    FROM unnest(sessions) WITH ORDINALITY AS session(one, place) ORDER BY place);
  WITH stored AS (
    INSERT INTO workflow_instances (id, namespace, workflow, instance_id, run_number, status, params, labels,
      created_at, updated_at, started_at, revision, first_fence, request_id, request_hash)
    SELECT fresh.id, fresh.namespace, fresh.workflow, fresh.instance_id, 0,
      CASE WHEN fresh.session IS NULL THEN 'queued' ELSE 'running' END, fresh.params, '{{}}', stamp, stamp,
      CASE WHEN fresh.session IS NULL THEN NULL ELSE stamp END, 0, 0, fresh.request_id, fresh.request_hash
    FROM unnest(ids, namespaces, workflows, instance_ids, given_params, request_ids, request_hashes, sessions)
      WITH ORDINALITY
      AS fresh(id, namespace, workflow, instance_id, params, request_id, request_hash, session, place)
    ORDER BY fresh.place
    ON CONFLICT DO NOTHING
    RETURNING workflow_instances.id
  )
  SELECT coalesce(array_agg(stored.id), '{{}}') INTO born FROM stored;
  INSERT INTO tasks (id, namespace, kind, name, key, run_number, reason, priority, run_at, status, fence, revision,
    frame_number, stop, wake_again, interruptions, acked, open_steps, session_id, connection, locked_until, created_at,
    step_count, pending_events, cached_revision, claimed_at, resolved_revision)
  SELECT fresh.id, fresh.namespace, 'workflow', fresh.workflow, fresh.instance_id, 0, 'run', new_priority, stamp,
    CASE WHEN fresh.session IS NULL THEN 'pending' ELSE 'processing' END, fresh.fence, 1, 0, 'none', false, 0, false,
    '', fresh.session, CASE WHEN fresh.session IS NULL THEN NULL ELSE fresh.connection END,
    CASE WHEN fresh.session IS NULL THEN NULL ELSE lease_stamp + ack_window END, stamp, 0, 0, 0,
    CASE WHEN fresh.session IS NULL THEN NULL ELSE stamp END, 0
  FROM unnest(ids, namespaces, workflows, instance_ids, sessions, connections, fences) WITH ORDINALITY
    AS fresh(id, namespace, workflow, instance_id, session, connection, fence, place)
  WHERE fresh.id = ANY(born)
  ORDER BY fresh.place;
  RETURN NEXT;
END
$$
"""


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        for function in (_REPORTS, _BIRTHS):
            op.execute(function)
