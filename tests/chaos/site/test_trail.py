"""The trail: every version of the rows of a run is noted, by the database itself."""

from __future__ import annotations

from stepwell import App, Client, Worker, workflow
from tests.chaos.site import trail
from tests.support.servers.servers import StartServer


@workflow("trailed")
async def trailed(event, step):
    first = await step.do("first", lambda: 1)
    await step.sleep("nap", "10 ms")
    return first


async def test_every_version_of_a_run_is_noted_in_the_order_of_commits(
    start_server: StartServer, database_url: str
) -> None:
    server = await start_server(database_url)
    await trail.install(database_url)
    async with Client(server.addresses.listen) as client, Worker(client, App(workflows=[trailed])):
        instance = await client.workflow(trailed).create("one")
        assert await instance.result() == 1

    changes = await trail.read(database_url)
    noted = {
        table: [one.row["status"] for one in changes if one.table == table]
        for table in ("workflow_instances", "workflow_steps")
    }
    assert noted["workflow_instances"][-1] == "complete"
    assert [one for one in noted["workflow_steps"] if one != "waiting"] == ["completed", "completed"]
    tasks = [one for one in changes if one.table == "tasks"]
    assert (tasks[0].change, tasks[-1].change) == ("insert", "delete")
    fences = [one.row["fence"] for one in tasks]
    assert fences == sorted(fences)
