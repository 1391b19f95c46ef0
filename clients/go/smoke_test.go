// Package stepwell_test proves that the generated stubs talk to a real server.
package stepwell_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"stepwell.io/go/stepwellv1"
)

// patience is how long a server may take to start, to answer or to stop: no test may hang and leave one behind.
const patience = 30 * time.Second

var listening = regexp.MustCompile(`^listening on (\S+) \(ops \S+\)\n$`)

// startServer runs a real server for one test, because stubs that compile may still not fit what the server sends, and
// returns its address.
func startServer(t *testing.T) string {
	t.Helper()
	server := exec.Command(cmp.Or(os.Getenv("STEPWELL_PYTHON"), "../../.venv/bin/python"), "-m", "stepwell_server",
		"--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--drain-settle", "0",
		"--database", "sqlite:///"+filepath.Join(t.TempDir(), "stepwell.db"))
	var log bytes.Buffer
	server.Stderr = &log
	stdout, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}

	killer := time.AfterFunc(patience, func() { server.Process.Kill() })
	line, _ := bufio.NewReader(stdout).ReadString('\n')
	killer.Stop()
	match := listening.FindStringSubmatch(line)
	if match == nil {
		server.Process.Kill()
		server.Wait()
		t.Fatalf("the server did not start serving; its log:\n%s", &log)
	}

	t.Cleanup(func() {
		server.Process.Signal(syscall.SIGTERM)
		killer.Reset(patience)
		defer killer.Stop()
		if err := server.Wait(); err != nil {
			t.Errorf("the server did not stop in good order: %v; its log:\n%s", err, &log)
		}
	})
	return match[1]
}

// TestSmoke calls a real server once for each kind of answer: health, a message and an error.
func TestSmoke(t *testing.T) {
	connection, err := grpc.NewClient(startServer(t), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	t.Run("the server is ready", func(t *testing.T) {
		health, err := healthv1.NewHealthClient(connection).Check(ctx, &healthv1.HealthCheckRequest{Service: "readiness"})
		if err != nil {
			t.Fatal(err)
		}
		if health.Status != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("status is %v", health.Status)
		}
	})

	t.Run("the server describes itself", func(t *testing.T) {
		info, err := stepwellv1.NewServerServiceClient(connection).GetServerInfo(ctx, &stepwellv1.GetServerInfoRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if info.Version == "" {
			t.Error("version is empty")
		}
		if kind := info.GetDatabase().GetKind(); kind != stepwellv1.DatabaseKind_DATABASE_KIND_SQLITE {
			t.Errorf("database.kind is %v", kind)
		}
		if info.DispatchMode != stepwellv1.DispatchMode_DISPATCH_MODE_EMBEDDED {
			t.Errorf("dispatch_mode is %v", info.DispatchMode)
		}
		if limit := info.GetLimits().GetMaxPayloadBytes(); limit != 1<<20 {
			t.Errorf("limits.max_payload_bytes is %d", limit)
		}
	})

	t.Run("the server says why it refuses a call", func(t *testing.T) {
		_, err := stepwellv1.NewNamespaceServiceClient(connection).CreateNamespace(ctx,
			&stepwellv1.CreateNamespaceRequest{Name: "default"})
		refusal := status.Convert(err)
		if refusal.Code() != codes.AlreadyExists {
			t.Fatalf("code is %v: %v", refusal.Code(), err)
		}
		if len(refusal.Details()) == 0 {
			t.Fatal("the error has no details")
		}
		info, ok := refusal.Details()[0].(*errdetails.ErrorInfo)
		if !ok || info.Reason != "NAMESPACE_ALREADY_EXISTS" || info.Domain != "stepwell.v1" {
			t.Errorf("the first detail is %v", refusal.Details()[0])
		}
	})
}
