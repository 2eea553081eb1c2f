package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/cli"
)

func TestSignals(t *testing.T) {
	exited := make(chan int, 1)
	ctx, release := cli.Signals(t.Context(), func(code int) { exited <- code })
	defer release()
	send(t, syscall.SIGINT)
	wait(t, ctx.Done())
	if got := context.Cause(ctx).Error(); got != "received interrupt" {
		t.Errorf("cause %q", got)
	}
	select {
	case code := <-exited:
		t.Fatalf("the first signal ended the process with %d", code)
	default:
	}
	send(t, syscall.SIGTERM)
	if code := wait(t, exited); code != 128+int(syscall.SIGTERM) {
		t.Errorf("exit status %d", code)
	}
}

func TestSignalsReleased(t *testing.T) {
	ctx, release := cli.Signals(t.Context(), func(int) { t.Error("exit was called") })
	release()
	wait(t, ctx.Done())
	if context.Cause(ctx) != context.Canceled {
		t.Errorf("cause %v", context.Cause(ctx))
	}
}

func send(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(os.Getpid(), s); err != nil {
		t.Fatal(err)
	}
}

func wait[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(10 * time.Second):
		t.Fatal("nothing came")
	}
	panic("not reached")
}

func TestLogger(t *testing.T) {
	var out bytes.Buffer
	log := cli.NewLogger(&out, false, "text")
	log.Debug("left out")
	log.Info("the stage", "after", 1)
	if got := out.String(); !strings.Contains(got, `level=INFO msg="the stage" after=1`) || strings.Contains(got, "left out") {
		t.Errorf("got %q", got)
	}
	out.Reset()
	cli.NewLogger(&out, true, "json").Debug("shown", "n", 1)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["msg"] != "shown" || line["level"] != "DEBUG" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

func kubeconfig(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name+".yaml")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncontexts: [{name: %s, context: {cluster: c, user: u}}]\ncurrent-context: %s\n", name, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKubectl(t *testing.T) {
	clusterd := program(t)
	cluster, mine := kubeconfig(t, "cluster"), kubeconfig(t, "mine")
	missing := filepath.Join(t.TempDir(), "missing")
	for _, row := range []struct {
		name string
		env  []string
		args string
		want string // in its output
		code int
	}{
		{"cluster's by default", []string{kubeconfigEnv + "=" + cluster}, "config current-context", "cluster\n", 0},
		{"environment", []string{kubeconfigEnv + "=" + cluster, "KUBECONFIG=" + mine}, "config current-context", "mine\n", 0},
		{"flag", []string{kubeconfigEnv + "=" + cluster}, "config current-context --kubeconfig=" + mine, "mine\n", 0},
		{"no cluster here", []string{kubeconfigEnv + "=" + missing}, "config current-context", "current-context is not set", 1},
		{"help", nil, "--help", "kubectl controls the Kubernetes cluster manager", 0},
		{"own flags", nil, "version --client --output=json", `"clientVersion"`, 0},
		{"unknown", nil, "gett", `unknown command "gett" for "kubectl"`, 1},
		{"no flags of others", nil, "--version", "unknown flag: --version", 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			env := append([]string{"KUBECONFIG=", "HOME=" + t.TempDir()}, row.env...)
			out, errs, code := execute(t, env, clusterd, append([]string{"kubectl"}, strings.Fields(row.args)...)...)
			if !strings.Contains(out+errs, row.want) || code != row.code {
				t.Errorf("exit status %d, want %d\n%s%s", code, row.code, out, errs)
			}
		})
	}
}

func TestKubectlWithoutPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	path := kubeconfig(t, "cluster")
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "kubectl", "config", "current-context")
	c.Env = []string{asClusterd + "=1", kubeconfigEnv + "=" + path, "HOME=/nonexistent"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, _ := c.CombinedOutput()
	if !strings.Contains(string(out), "clusterd: no permission to read "+path+": become root, or set KUBECONFIG to a copy of it\n") {
		t.Errorf("got %q", out)
	}
}

func TestIsKubectl(t *testing.T) {
	for argv0, want := range map[string]bool{"kubectl": true, "/usr/bin/kubectl": true, "clusterd": false, "kubectl-x": false} {
		if got := cli.IsKubectl(argv0); got != want {
			t.Errorf("%s: %t", argv0, got)
		}
	}
}
