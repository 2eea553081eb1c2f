package network_test

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// endpoint builds the CNI endpoint and returns what executes it.
func endpoint(t testing.TB) (run func(conf string, env ...string) (string, error)) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "cni")
	build := exec.Command("go", "build", "-o", file, "./cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the endpoint: %v: %s", err, out)
	}
	return func(conf string, env ...string) (string, error) {
		cmd := exec.Command(file)
		cmd.Env, cmd.Stdin = env, strings.NewReader(conf)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		err := cmd.Run()
		return out.String(), err
	}
}

// pluginConf is the configuration as the runtime passes it on.
func (nd *node) pluginConf(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(nd.cfg.CNIConfDir, "10-clusterd.conflist"))
	must(t, err)
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	must(t, json.Unmarshal(data, &list))
	conf := list.Plugins[0]
	conf["cniVersion"], conf["name"] = list.CNIVersion, list.Name
	conf["runtimeConfig"] = map[string]any{"portMappings": []any{map[string]any{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
	data, err = json.Marshal(conf)
	must(t, err)
	return string(data)
}

func TestEndpoint(t *testing.T) {
	run := endpoint(t)
	nd := newNode(t)
	out := nd.outside(t)
	_, stop := nd.start(t)
	conf := nd.pluginConf(t)
	p := nd.newPod(t, "a")
	env := []string{"CNI_CONTAINERID=a", "CNI_NETNS=" + p.ns, "CNI_IFNAME=eth0", "CNI_ARGS=K8S_POD_NAME=x;K8S_POD_NAMESPACE=y", "CNI_PATH=/x", "HOME=/"}

	reply, err := run(conf, append(env, "CNI_COMMAND=ADD")...)
	if err != nil {
		t.Fatalf("ADD: %v: %s", err, reply)
	}
	must(t, p.take(reply))
	serve(t, p.ns, 80)
	wantCall(t, out, "tcp", node4, 8080, outside4)

	if reply, err = run(conf, append(env, "CNI_COMMAND=CHECK")...); err != nil || reply != "" {
		t.Errorf("CHECK: %v: %s", err, reply)
	}
	if reply, err = run(conf, append(env, "CNI_COMMAND=DEL")...); err != nil || reply != "" {
		t.Errorf("DEL: %v: %s", err, reply)
	}
	reply, err = run(conf, append(env, "CNI_COMMAND=CHECK")...)
	wantFailure(t, reply, err, 100, "it has no address")

	if reply, err = run(`{"cniVersion":"1.0.0"}`, "CNI_COMMAND=VERSION"); err != nil || !strings.Contains(reply, `"supportedVersions"`) {
		t.Errorf("VERSION: %v: %s", err, reply)
	}
	reply, err = run(`{"name":"socket"}`, append(env, "CNI_COMMAND=ADD")...)
	wantFailure(t, reply, err, 11, "names no socket")

	// While the agent is being restarted, the endpoint waits for it.
	stop()
	nd.setLive(t, p)
	time.AfterFunc(200*time.Millisecond, func() { nd.start(t) })
	if reply, err = run(conf, append(env, "CNI_COMMAND=ADD")...); err != nil {
		t.Errorf("ADD during a restart: %v: %s", err, reply)
	}
}

func wantFailure(t *testing.T, reply string, err error, code int, text string) {
	t.Helper()
	var e struct {
		CNIVersion string
		Code       int
		Msg        string
	}
	if err == nil || json.Unmarshal([]byte(reply), &e) != nil || e.Code != code || e.CNIVersion != "1.0.0" || !strings.Contains(e.Msg, text) {
		t.Errorf("got %v: %s, want code %d with %q", err, reply, code, text)
	}
}
