import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { credentials, makeClientConstructor, status, type requestCallback, type ServiceError } from "@grpc/grpc-js";
import { service as healthService } from "grpc-health-check";
import { CreateNamespaceRequest, NamespaceServiceClient } from "../src/gen/stepwell/v1/namespaces.js";
import {
  DatabaseKind,
  DispatchMode,
  ServerServiceClient,
  type GetServerInfoResponse,
} from "../src/gen/stepwell/v1/server.js";
import { startServer, type RunningServer } from "./server.js";

/** No call may hang: a test that gives up still stops its server. */
const LIMIT = { timeout: 30_000 };

const HealthClient = makeClientConstructor(healthService, "grpc.health.v1.Health");

/** Turns the callback of a grpc-js call into a promise, so that the tests read from top to bottom. */
function unary<Response>(call: (done: requestCallback<Response>) => void): Promise<Response> {
  return new Promise((resolve, reject) => call((error, response) => (error ? reject(error) : resolve(response!))));
}

describe("a real server", () => {
  let server: RunningServer;

  before(async () => {
    server = await startServer();
  });
  after(() => server?.stop());

  it("is ready", LIMIT, async (test) => {
    const client = new HealthClient(server.address, credentials.createInsecure());
    test.after(() => client.close());
    const health = await unary<{ status: string }>((done) => client.check({ service: "readiness" }, done));

    assert.equal(health.status, "SERVING");
  });

  it("describes itself", LIMIT, async (test) => {
    const client = new ServerServiceClient(server.address, credentials.createInsecure());
    test.after(() => client.close());
    const info = await unary<GetServerInfoResponse>((done) => client.getServerInfo({}, done));

    assert.notEqual(info.version, "");
    assert.equal(info.database?.kind, DatabaseKind.DATABASE_KIND_SQLITE);
    assert.equal(info.dispatchMode, DispatchMode.DISPATCH_MODE_EMBEDDED);
    assert.equal(info.limits?.maxPayloadBytes, 1_048_576n);
  });

  it("says why it refuses a call", LIMIT, async (test) => {
    const client = new NamespaceServiceClient(server.address, credentials.createInsecure());
    test.after(() => client.close());
    const request = CreateNamespaceRequest.fromPartial({ name: "default" });
    const refused = unary((done) => client.createNamespace(request, done));

    await assert.rejects(refused, (error: ServiceError) => {
      assert.equal(error.code, status.ALREADY_EXISTS);
      // grpc-js decodes no google.rpc.Status; its strings are plain UTF-8 inside.
      const [details] = error.metadata.get("grpc-status-details-bin");
      assert.ok(details?.includes("NAMESPACE_ALREADY_EXISTS"));
      assert.ok(details.includes("stepwell.v1"));
      return true;
    });
  });
});
