package io.stepwell;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A real server that a test owns, because stubs that compile may still not fit what the server sends. */
record StepwellServer(String address, Process process, Path log) implements AutoCloseable {
  private static final Pattern LISTENING = Pattern.compile("listening on (\\S+) \\(ops \\S+\\)");
  private static final int PATIENCE_SECONDS = 30;

  /** Starts a server on free ports, with its database and its log in a directory of the test. */
  static StepwellServer start(Path directory) throws IOException, InterruptedException {
    Path log = directory.resolve("server.log");
    Process process =
        new ProcessBuilder(
                Objects.requireNonNullElse(System.getenv("STEPWELL_PYTHON"), "../../.venv/bin/python"),
                "-m", "stepwell_server", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--drain-settle", "0",
                "--database", "sqlite:///" + directory.resolve("stepwell.db"))
            .redirectError(log.toFile())
            .start();
    String line =
        CompletableFuture.supplyAsync(() -> process.inputReader().lines().findFirst().orElse(""))
            .completeOnTimeout("", PATIENCE_SECONDS, TimeUnit.SECONDS)
            .join();
    Matcher match = LISTENING.matcher(line);
    if (!match.matches()) {
      process.destroyForcibly().waitFor();
      throw new IllegalStateException("the server did not start serving; its log:\n" + Files.readString(log));
    }
    return new StepwellServer(match.group(1), process, log);
  }

  /** Asks the server to stop, and throws unless it goes in good order. */
  @Override
  public void close() throws IOException, InterruptedException {
    process.toHandle().destroy(); // Unlike Process.destroy, this leaves the server its standard output until it ends.
    if (!process.waitFor(PATIENCE_SECONDS, TimeUnit.SECONDS)) {
      process.destroyForcibly().waitFor();
    }
    if (process.exitValue() != 0) {
      throw new IllegalStateException(
          "the server ended with " + process.exitValue() + "; its log:\n" + Files.readString(log));
    }
  }
}
