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

// lacking runs kubectl where nothing tells of a cluster.
func lacking(t *testing.T, env []string, args string) (out, errs string, code int) {
	t.Helper()
	env = append([]string{"KUBECONFIG=", "KUBERNETES_SERVICE_HOST=", "KUBERNETES_MASTER=", "HOME=" + t.TempDir()}, env...)
	return execute(t, env, program(t), append([]string{"kubectl"}, strings.Fields(args)...)...)
}

// TestKubectlWithoutCluster wants one line that says what is missing, and nothing of it where no cluster is needed.
func TestKubectlWithoutCluster(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	none := kubeconfigEnv + "=" + missing
	for args, want := range map[string]string{
		"get pods":                            "error: there is no kubeconfig: KUBECONFIG is not set and " + missing + " does not exist: start clusterd server, which writes it, or give a kubeconfig with --kubeconfig\n",
		"api-resources":                       "start clusterd server",
		"run x --image=y":                     "start clusterd server",
		"exec x -- true":                      "start clusterd server",
		"get pods --kubeconfig=" + missing:    "stat " + missing + ": no such file or directory",
		"get pods --server=http://[::1]:9999": "[::1]:9999",
	} {
		t.Run(args, func(t *testing.T) {
			out, errs, code := lacking(t, []string{none}, args)
			if code != 1 || out != "" || !strings.Contains(errs, want) || strings.Contains(errs, "localhost:8080") {
				t.Errorf("exit status %d\n%s%s", code, out, errs)
			}
			if strings.Contains(want, "start clusterd") && strings.Count(errs, "\n") != 1 {
				t.Errorf("more than one line:\n%s", errs)
			}
		})
	}
	if _, errs, code := lacking(t, []string{none, "KUBECONFIG=/does/not/exist"}, "get pods"); code != 1 || !strings.Contains(errs, "no cluster is configured in /does/not/exist, which KUBECONFIG names") {
		t.Errorf("exit status %d\n%s", code, errs)
	}
	if out, errs, code := lacking(t, []string{none}, "version"); code != 1 || !strings.Contains(out, "Client Version:") || !strings.Contains(errs, "start clusterd server") {
		t.Errorf("exit status %d\n%s%s", code, out, errs)
	}
}

func TestKubectlThatNeedsNoCluster(t *testing.T) {
	kustomization := t.TempDir()
	if err := os.WriteFile(filepath.Join(kustomization, "kustomization.yaml"), []byte("namePrefix: made-\nconfigMapGenerator: [{name: x}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"version --client":           "Client Version:",
		"--help":                     "kubectl controls",
		"help get":                   "Display one or many resources",
		"get --help":                 "Display one or many resources",
		"completion bash":            "bash completion",
		"kustomize " + kustomization: "made-x",
		"config view":                "kind: Config",
		"options":                    "--kubeconfig",
		"create deployment d --image=i --dry-run=client --output=yaml": "kind: Deployment",
		"create namespace n --dry-run=client --output=name":            "namespace/n",
	} {
		t.Run(args, func(t *testing.T) {
			out, errs, code := lacking(t, []string{kubeconfigEnv + "=" + filepath.Join(t.TempDir(), "missing")}, args)
			if code != 0 || !strings.Contains(out, want) || errs != "" {
				t.Errorf("exit status %d\n%s%s", code, out, errs)
			}
		})
	}
}

func TestKubectlWithoutPermission(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to become somebody else")
	}
	path := kubeconfig(t, "cluster")
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "kubectl", "get", "pods")
	c.Env = []string{asClusterd + "=1", kubeconfigEnv + "=" + path, "HOME=/nonexistent"}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, _ := c.CombinedOutput()
	want := "error: no permission to read " + path + ": use sudo, or start clusterd server with another --write-kubeconfig-mode, or give a copy with --kubeconfig or KUBECONFIG\n"
	if string(out) != want {
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
