import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const PATIENCE_MS = 30_000;

/** A server that a test owns: no other test sees its data. */
export interface RunningServer {
  /** Where it serves gRPC, as "host:port". */
  address: string;
  /** Asks it to stop, and throws unless it goes in good order. */
  stop(): Promise<void>;
}

/** Starts a real server, because stubs that compile may still not fit what the server sends. */
export async function startServer(): Promise<RunningServer> {
  const directory = await mkdtemp(join(tmpdir(), "stepwell-"));
  const server = spawn(
    process.env.STEPWELL_PYTHON ?? "../../.venv/bin/python",
    [
      ...["-m", "stepwell_server", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--drain-settle", "0"],
      ...["--database", `sqlite:///${directory}/stepwell.db`],
    ],
    { stdio: ["ignore", "pipe", "pipe"] },
  );
  let log = "";
  server.stderr.setEncoding("utf8").on("data", (text: string) => (log += text));
  const ended = once(server, "close").finally(() => rm(directory, { recursive: true }));

  /** Waits, kills the server if that takes too long, and so never leaves one behind. */
  async function patiently<T>(wait: Promise<T>): Promise<T> {
    const timer = setTimeout(() => server.kill("SIGKILL"), PATIENCE_MS);
    return wait.finally(() => clearTimeout(timer));
  }

  const firstLine = once(createInterface({ input: server.stdout }), "line");
  const [line] = await patiently(Promise.race([firstLine, ended]));
  const address = /^listening on (\S+) \(ops \S+\)$/.exec(String(line))?.[1];
  if (address === undefined) {
    server.kill("SIGKILL");
    await ended;
    throw new Error(`the server did not start serving; its log:\n${log}`);
  }

  async function stop(): Promise<void> {
    server.kill("SIGTERM");
    const [exitCode] = await patiently(ended);
    if (exitCode !== 0) {
      throw new Error(`the server ended with ${exitCode}; its log:\n${log}`);
    }
  }
  return { address, stop };
}
