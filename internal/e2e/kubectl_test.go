//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"io"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// testKubectl uses the connections that do not go by plain requests, and the other commands of the executable.
func (s *suite) testKubectl(t *testing.T) {
	c := container("c", "sh", "-c", "echo started; exec tool serve")
	c.ReadinessProbe = probe(httpProbe("/healthz", 8080))
	s.runs(t, newPod("talk", c))
	t.Run("Exec", func(t *testing.T) {
		if out := s.exec(t, "talk", "sh", "-c", "echo $((6*7))"); out != "42" {
			t.Errorf("exec printed %q", out)
		}
		if out := s.kubectlWith(t, "through the pipe", "exec", "-i", "talk", "--", "cat"); out != "through the pipe" {
			t.Errorf("exec -i cat printed %q", out)
		}
		_, err := s.Clusterd(t.Context(), nil, "kubectl", "exec", "talk", "--", "sh", "-c", "exit 7")
		if err == nil || !strings.Contains(err.Error(), "exit code 7") {
			t.Errorf("exit status of the command in the pod: %v, want 7", err)
		}
	})
	t.Run("Logs", func(t *testing.T) {
		if out := s.kubectl(t, "logs", "talk"); out != "started\n" {
			t.Errorf("logs: %q", out)
		}
	})
	t.Run("Copy", func(t *testing.T) {
		put(t, s.Cluster, "/tmp/there", []byte("back and forth"))
		s.kubectl(t, "cp", "/tmp/there", "talk:/there")
		s.kubectl(t, "cp", "talk:/there", "/tmp/back")
		if out, err := s.Node.Output(t.Context(), "cat", "/tmp/back"); err != nil || out != "back and forth" {
			t.Errorf("copied to a pod and back: %q, %v", out, err)
		}
	})
	t.Run("PortForward", func(t *testing.T) {
		url := "http://" + s.announces(t, "port-forward", "talk", ":8080") + "/"
		s.answers(t, url, "talk")
	})
	t.Run("Proxy", func(t *testing.T) {
		url := "http://" + s.announces(t, "proxy", "--port=0") + "/api/v1/namespaces/default/pods/talk"
		s.answers(t, url, `"name":"talk"`)
	})
	t.Run("Version", func(t *testing.T) {
		wants(t, s.kubectl(t, "version"), "Client Version: v1.37.2+clusterd.", "Server Version: v1.37.2+clusterd.")
		out, err := s.Clusterd(t.Context(), nil, "version")
		if err != nil {
			t.Fatal(err)
		}
		wants(t, out, "v1.37.2+clusterd.")
	})
	t.Run("OtherName", func(t *testing.T) {
		if out, err := s.Node.Output(t.Context(), "ln", "-s", s.Binary, "/tmp/kubectl"); err != nil {
			t.Fatal(out, err)
		}
		out, err := s.Node.Output(t.Context(), "/tmp/kubectl", "get", "nodes", "--output=name")
		if err != nil || strings.TrimSpace(out) != "node/"+s.Node.Name() {
			t.Errorf("the executable under the name kubectl: %q, %v", out, err)
		}
	})
}

// address finds where a command of kubectl says that it listens.
var address = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// announces starts a kubectl command that goes on until the end of the test, and returns the address it prints first.
func (s *suite) announces(t *testing.T, args ...string) string {
	t.Helper()
	out, in := io.Pipe()
	p, err := s.Node.Start(in, nil, append([]string{s.Binary, "kubectl"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Signal(syscall.SIGINT)
		if err := p.Wait(10 * time.Second); err != nil {
			_ = p.Kill()
		}
		in.Close()
	})
	found := make(chan string, 1)
	go func() {
		var printed bytes.Buffer
		for lines := bufio.NewScanner(out); lines.Scan(); {
			printed.Write(lines.Bytes())
			if a := address.Find(lines.Bytes()); a != nil {
				found <- string(a)
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case a := <-found:
		return a
	case <-p.Done():
		t.Fatalf("kubectl %q ended: %v", args, p.Err())
	case <-time.After(podTimeout):
		t.Fatalf("kubectl %q prints no address", args)
	}
	return ""
}
