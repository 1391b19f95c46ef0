package io.stepwell;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.google.rpc.ErrorInfo;
import com.google.rpc.Status;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.StatusRuntimeException;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.protobuf.StatusProto;
import io.stepwell.v1.CreateNamespaceRequest;
import io.stepwell.v1.DatabaseKind;
import io.stepwell.v1.DispatchMode;
import io.stepwell.v1.GetServerInfoRequest;
import io.stepwell.v1.GetServerInfoResponse;
import io.stepwell.v1.NamespaceServiceGrpc;
import io.stepwell.v1.ServerServiceGrpc;
import java.nio.file.Path;
import org.junit.jupiter.api.AutoClose;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Calls a real server once for each kind of answer: health, a message and an error. */
@Timeout(30)
class SmokeTest {
  @AutoClose private static StepwellServer server;

  @AutoClose("shutdownNow")
  private static ManagedChannel channel;

  @BeforeAll
  static void startServer(@TempDir Path directory) throws Exception {
    server = StepwellServer.start(directory);
    channel = Grpc.newChannelBuilder(server.address(), InsecureChannelCredentials.create()).build();
  }

  @Test
  void serverIsReady() {
    HealthCheckResponse health =
        HealthGrpc.newBlockingStub(channel)
            .check(HealthCheckRequest.newBuilder().setService("readiness").build());

    assertEquals(ServingStatus.SERVING, health.getStatus());
  }

  @Test
  void serverDescribesItself() {
    GetServerInfoResponse info =
        ServerServiceGrpc.newBlockingStub(channel).getServerInfo(GetServerInfoRequest.getDefaultInstance());

    assertFalse(info.getVersion().isEmpty());
    assertEquals(DatabaseKind.DATABASE_KIND_SQLITE, info.getDatabase().getKind());
    assertEquals(DispatchMode.DISPATCH_MODE_EMBEDDED, info.getDispatchMode());
    assertEquals(1_048_576, info.getLimits().getMaxPayloadBytes());
  }

  @Test
  void serverSaysWhyItRefusesACall() throws Exception {
    CreateNamespaceRequest request = CreateNamespaceRequest.newBuilder().setName("default").build();
    StatusRuntimeException refusal =
        assertThrows(
            StatusRuntimeException.class,
            () -> NamespaceServiceGrpc.newBlockingStub(channel).createNamespace(request));

    assertEquals(io.grpc.Status.Code.ALREADY_EXISTS, refusal.getStatus().getCode());
    Status status = StatusProto.fromThrowable(refusal);
    ErrorInfo info = status.getDetails(0).unpack(ErrorInfo.class);
    assertEquals("NAMESPACE_ALREADY_EXISTS", info.getReason());
    assertEquals("stepwell.v1", info.getDomain());
  }
}
