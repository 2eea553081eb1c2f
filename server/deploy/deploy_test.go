package deploy_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/internal/lifecycle"
	"github.com/clusterd/clusterd/internal/testkit"
	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
	"github.com/clusterd/clusterd/manifests"
	"github.com/clusterd/clusterd/server/deploy"
)

var _ lifecycle.Component = (*deploy.Deployer)(nil)

const (
	systemMaps  = "/api/v1/namespaces/kube-system/configmaps/"
	defaultMaps = "/api/v1/namespaces/default/configmaps/"
	inventory   = systemMaps + "clusterd-manifests"
)

// configMap is a manifest of one ConfigMap.
func configMap(name, value string) string {
	return "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: " + name + "}\ndata: {k: \"" + value + "\"}\n"
}

// log collects what is logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// lines returns the lines that contain text.
func (l *log) lines(text string) (found []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// fixture is a deployer's world.
type fixture struct {
	t   *testing.T
	api *kubeapi.Server
	dir string
	log log
	cfg deploy.Config
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, api: kubeapi.New(t), dir: filepath.Join(t.TempDir(), "manifests")}
	if err := os.Mkdir(f.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f.cfg = deploy.Config{RESTConfig: f.api.Config(), UserDir: f.dir}
	return f
}

// write puts a file into the user's directory; remove takes it away.
func (f *fixture) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) remove(name string) {
	f.t.Helper()
	if err := os.RemoveAll(filepath.Join(f.dir, name)); err != nil {
		f.t.Fatal(err)
	}
}

// start runs a deployer until stop is called; it waits for ready.
func (f *fixture) start() (stop func()) {
	f.t.Helper()
	d, err := deploy.New(f.cfg, slog.New(slog.NewTextHandler(&f.log, nil)))
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- d.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		f.t.Fatalf("ended before ready: %v", err)
	case <-time.After(10 * time.Second):
		f.t.Fatal("not ready")
	}
	return func() {
		f.t.Helper()
		cancel()
		if err := <-ended; err != nil {
			f.t.Errorf("ended with %v", err)
		}
	}
}

// until waits until ok.
func (f *fixture) until(what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			f.t.Fatalf("%s did not come; there are %q; log:\n%s", what, f.api.Paths(), strings.Join(f.log.lines(""), ""))
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (f *fixture) value(path string) any {
	data, _ := f.api.Get(path)["data"].(kubeapi.Object)
	return data["k"]
}

func TestUserFilesComeChangeAndLeave(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", configMap("one", "1")+configMap("two", "1"))
	stop := f.start()
	defer stop()
	f.until("both objects", func() bool { return f.value(defaultMaps+"one") == "1" && f.value(defaultMaps+"two") == "1" })

	f.write("a.yaml", configMap("one", "2"))
	f.until("the change", func() bool { return f.value(defaultMaps+"one") == "2" })
	f.until("the removal of what left the file", func() bool { return f.api.Get(defaultMaps+"two") == nil })

	f.write("sub/b.json", `{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"three"},"data":{"k":"${HOME}"}}]}`)
	f.until("the file in a new folder", func() bool { return f.value(defaultMaps+"three") == "${HOME}" })
	f.write("sub/b.json", strings.ReplaceAll(configMap("three", "4"), "---\n", ""))
	f.until("a change in the new folder", func() bool { return f.value(defaultMaps+"three") == "4" })

	f.remove("a.yaml")
	f.remove("sub")
	f.until("the removals", func() bool { return f.api.Get(defaultMaps+"one") == nil && f.api.Get(defaultMaps+"three") == nil })
}

func TestWhatLeftWhileStoppedIsRemoved(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", configMap("one", "1")+configMap("two", "1"))
	f.write("b.yaml", configMap("three", "1"))
	stop := f.start()
	f.until("the objects", func() bool { return f.api.Get(defaultMaps+"two") != nil && f.api.Get(defaultMaps+"three") != nil })
	stop()
	f.write("a.yaml", configMap("one", "1"))
	f.remove("b.yaml")
	stop = f.start()
	defer stop()
	f.until("the removals", func() bool { return f.api.Get(defaultMaps+"two") == nil && f.api.Get(defaultMaps+"three") == nil })
	if f.api.Get(defaultMaps+"one") == nil {
		t.Error("what stayed was removed")
	}
}

func TestRestartWithoutChangeWritesAndSaysNothing(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", configMap("one", "1"))
	stop := f.start()
	f.until("the object", func() bool { return len(f.log.lines("Manifest applied")) == 1 })
	stop()
	before := len(f.api.Writes())
	f.cfg.Embedded = fstest.MapFS{}
	stop = f.start()
	stop()
	if got := f.api.Writes()[before:]; len(got) != 0 {
		t.Errorf("wrote %q", got)
	}
	if lines := f.log.lines("level=INFO"); len(lines) != 1 {
		t.Errorf("logged %q", lines)
	}
}

func TestObjectThatMovesToAnotherFileStays(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", configMap("one", "1"))
	stop := f.start()
	f.until("the object", func() bool { return f.api.Get(defaultMaps+"one") != nil })
	stop()
	uid := f.api.Get(defaultMaps + "one")["metadata"].(kubeapi.Object)["uid"]
	f.remove("a.yaml")
	f.write("b.yaml", strings.ReplaceAll(configMap("one", "2"), "{name: one}", "{name: one, namespace: default}"))
	stop = f.start()
	f.until("the change", func() bool { return f.value(defaultMaps+"one") == "2" })
	stop()
	if got := f.api.Get(defaultMaps + "one")["metadata"].(kubeapi.Object)["uid"]; got != uid {
		t.Error("it was made again")
	}
}

func TestResourceWaitsForItsDefinition(t *testing.T) {
	f := newFixture(t)
	f.api.Define("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false)
	f.write("a.yaml", `
apiVersion: example.org/v1
kind: Thing
metadata: {name: t, namespace: made-here}
---
apiVersion: v1
kind: Namespace
metadata: {name: made-here}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
`)
	stop := f.start()
	defer stop()
	f.until("the definition", func() bool {
		return f.api.Get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.org") != nil
	})
	f.until("the report", func() bool { return len(f.log.lines("a.yaml")) > 0 })
	f.api.Define("example.org", "v1", "Thing", "things", true)
	thing := "/apis/example.org/v1/namespaces/made-here/things/t"
	f.until("the resource", func() bool { return f.api.Get(thing) != nil })
	f.remove("a.yaml")
	f.until("the removal", func() bool { return f.api.Get(thing) == nil && f.api.Get("/api/v1/namespaces/made-here") == nil })
}

func TestBrokenFileHarmsNothingAndIsNamedOnce(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", configMap("one", "1"))
	f.write("good.yaml", configMap("two", "1"))
	stop := f.start()
	defer stop()
	f.until("the objects", func() bool { return f.api.Get(defaultMaps+"one") != nil && f.api.Get(defaultMaps+"two") != nil })
	f.write("a.yaml", "apiVersion: v1\nkind: [broken\n")
	f.write("good.yaml", configMap("two", "2"))
	f.until("the report", func() bool { return len(f.log.lines("level=WARN")) > 0 })
	f.until("the other file", func() bool { return f.value(defaultMaps+"two") == "2" })
	time.Sleep(time.Second) // several retries
	if lines := f.log.lines("level=WARN"); len(lines) != 1 || !strings.Contains(lines[0], "file=a.yaml") {
		t.Errorf("logged %q", lines)
	}
	if f.api.Get(defaultMaps+"one") == nil {
		t.Error("the broken file's object was removed")
	}
	f.write("a.yaml", configMap("one", "3"))
	f.until("the repaired file", func() bool { return f.value(defaultMaps+"one") == "3" })
}

func TestFailuresOfTheAPIAreRetried(t *testing.T) {
	f := newFixture(t)
	f.cfg.Embedded = fstest.MapFS{"x/x.yaml": {Data: []byte(configMap("one", "1"))}}
	var mu sync.Mutex
	left := 4
	f.api.Refuse(func(r *http.Request) *metav1.Status {
		mu.Lock()
		defer mu.Unlock()
		if left == 0 {
			return nil
		}
		left--
		return &metav1.Status{Status: "Failure", Code: 403, Reason: metav1.StatusReasonForbidden, Message: "not yet"}
	})
	stop := f.start()
	defer stop()
	if f.api.Get(defaultMaps+"one") == nil {
		t.Error("ready before the addon was applied")
	}
}

func TestAddonsVariablesAndDisabling(t *testing.T) {
	f := newFixture(t)
	f.cfg.Embedded = fstest.MapFS{
		"keep/a.yaml": {Data: []byte(configMap("keep", "${ADDRESS}"))},
		"drop/a.yaml": {Data: []byte(configMap("drop", "x"))},
	}
	f.cfg.Vars = map[string]string{"ADDRESS": "10.43.0.10"}
	f.start()()
	if f.value(defaultMaps+"keep") != "10.43.0.10" || f.api.Get(defaultMaps+"drop") == nil {
		t.Fatalf("there are %q", f.api.Paths())
	}
	f.cfg.Disabled = []string{"drop"}
	f.start()()
	if f.api.Get(defaultMaps+"drop") != nil || f.api.Get(defaultMaps+"keep") == nil {
		t.Fatalf("there are %q", f.api.Paths())
	}
}

func TestInventoryIsWrittenBeforeObjects(t *testing.T) {
	f := newFixture(t)
	f.cfg.Embedded = fstest.MapFS{"x/x.yaml": {Data: []byte(configMap("one", "1"))}}
	f.start()()
	want := []string{"PATCH " + inventory, "PATCH " + defaultMaps + "one"}
	if got := f.api.Writes(); !slices.Equal(got, want) {
		t.Errorf("wrote %q, want %q", got, want)
	}
}

// The addons that are in the executable must be applicable without discovery.
func TestEmbeddedAddons(t *testing.T) {
	f := newFixture(t)
	f.api.Define("", "v1", "Service", "services", true)
	f.api.Define("", "v1", "ServiceAccount", "serviceaccounts", true)
	f.api.Define("apiregistration.k8s.io", "v1", "APIService", "apiservices", false)
	for kind, plural := range map[string]string{"Role": "roles", "RoleBinding": "rolebindings"} {
		f.api.Define("rbac.authorization.k8s.io", "v1", kind, plural, true)
		f.api.Define("rbac.authorization.k8s.io", "v1", "Cluster"+kind, "cluster"+plural, false)
	}
	f.api.Refuse(func(r *http.Request) *metav1.Status {
		if r.URL.Path == "/apis" {
			t.Error("the API was searched for kinds")
		}
		return nil
	})
	f.cfg.Embedded, f.cfg.Vars = manifests.FS, map[string]string{"CLUSTER_DNS": "10.43.0.10"}
	f.start()()
	spec, _ := f.api.Get("/api/v1/namespaces/kube-system/services/kube-dns")["spec"].(kubeapi.Object)
	if spec["clusterIP"] != "10.43.0.10" || spec["selector"] != nil {
		t.Errorf("the DNS Service is %v", spec)
	}
}

func TestContract(t *testing.T) {
	api := kubeapi.New(t)
	testkit.Component(t, func(t *testing.T) lifecycle.Component {
		config := rest.CopyConfig(api.Config())
		config.Transport = &http.Transport{DisableKeepAlives: true}
		d, err := deploy.New(deploy.Config{
			RESTConfig: config,
			UserDir:    filepath.Join(t.TempDir(), "not", "there", "yet"),
			Embedded:   fs.FS(fstest.MapFS{"x/x.yaml": {Data: []byte(configMap("one", "1"))}}),
		}, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		return d
	}, testkit.MayLeak("net/http.(*conn)"), testkit.MayLeak("net/http.(*Server)"))
}

func TestNewNeedsTheAPI(t *testing.T) {
	if _, err := deploy.New(deploy.Config{}, nil); err == nil {
		t.Fatal("no error")
	}
}
