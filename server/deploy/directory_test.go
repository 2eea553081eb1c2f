package deploy_test

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

// must fails the test on an error of a step that is not what it is about.
func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// warnings are the warnings that contain text.
func (f *fixture) warnings(text string) (found []string) {
	for _, line := range f.log.lines("level=WARN") {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

func TestDirectoryThatIsNoneDoesNotHoldTheAddonsUp(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", configMap("one", "1"))
	stop := f.start()
	f.until("the object", func() bool { return f.api.Get(defaultMaps+"one") != nil })
	stop()
	f.must(os.RemoveAll(f.dir))
	f.must(os.WriteFile(f.dir, nil, 0o600))
	f.cfg.Embedded = fstest.MapFS{"x/x.yaml": {Data: []byte(configMap("addon", "1"))}}
	stop = f.start() // waits for the addons
	defer stop()
	f.until("the report", func() bool { return len(f.warnings(f.dir)) > 0 })
	time.Sleep(time.Second) // several retries
	if f.api.Get(defaultMaps+"one") == nil {
		t.Error("what was applied from the directory was removed")
	}
	if lines := f.warnings(""); len(lines) != 1 || !strings.Contains(lines[0], "not a directory") {
		t.Errorf("logged %q", lines)
	}
	f.must(os.Remove(f.dir))
	f.write("a.yaml", configMap("one", "2"))
	f.until("the change", func() bool { return f.value(defaultMaps+"one") == "2" })
}

// A folder that cannot be read holds nothing up but what is in it.
func TestFolderThatCannotBeRead(t *testing.T) {
	if os.Geteuid() == 0 {
		asNobody(t) // root can read everything
		return
	}
	f := newFixture(t)
	f.write("sub/a.yaml", configMap("one", "1"))
	f.write("b.yaml", configMap("two", "1"))
	stop := f.start()
	defer stop()
	f.until("the objects", func() bool { return f.api.Get(defaultMaps+"one") != nil && f.api.Get(defaultMaps+"two") != nil })
	sub := filepath.Join(f.dir, "sub")
	f.must(os.Chmod(sub, 0))
	defer os.Chmod(sub, 0o700) //nolint:errcheck // it is removed with the test
	f.remove("b.yaml")
	f.until("the removal", func() bool { return f.api.Get(defaultMaps+"two") == nil })
	if f.api.Get(defaultMaps+"one") == nil || len(f.warnings(sub)) != 1 {
		t.Errorf("there are %q, logged %q", f.api.Paths(), f.warnings(""))
	}
}

// asNobody runs the test in a process without root's rights.
func asNobody(t *testing.T) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestDirectoryThatLeavesAndComesAgain(t *testing.T) {
	for name, leave := range map[string]func(f *fixture) error{
		"removed": func(f *fixture) error { return os.RemoveAll(f.dir) },
		"renamed": func(f *fixture) error { return os.Rename(f.dir, f.dir+".old") },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.write("a.yaml", configMap("one", "1"))
			f.write("sub/deep/b.yaml", configMap("two", "1"))
			stop := f.start()
			defer stop()
			f.until("the objects", func() bool { return f.api.Get(defaultMaps+"one") != nil && f.api.Get(defaultMaps+"two") != nil })
			f.must(leave(f))
			f.until("the report", func() bool { return len(f.warnings("is missing")) > 0 })
			if f.api.Get(defaultMaps+"one") == nil || f.api.Get(defaultMaps+"two") == nil {
				t.Error("objects were removed")
			}
			f.write("sub/deep/b.yaml", configMap("two", "2"))
			f.until("the change", func() bool { return f.value(defaultMaps+"two") == "2" })
			f.until("the removal of what did not come again", func() bool { return f.api.Get(defaultMaps+"one") == nil })
			f.write("sub/deep/b.yaml", configMap("two", "3"))
			f.until("a change in the new directories", func() bool { return f.value(defaultMaps+"two") == "3" })
			if lines := f.warnings(""); len(lines) != 1 {
				t.Errorf("logged %q", lines)
			}
		})
	}
}

func TestFolderThatIsReplacedIsWatched(t *testing.T) {
	f := newFixture(t)
	f.write("sub/deep/a.yaml", configMap("one", "1"))
	stop := f.start()
	defer stop()
	f.until("the object", func() bool { return f.api.Get(defaultMaps+"one") != nil })
	f.must(os.Rename(filepath.Join(f.dir, "sub"), f.dir+".old"))
	f.write("sub/deep/a.yaml", configMap("one", "2"))
	f.until("the change", func() bool { return f.value(defaultMaps+"one") == "2" })
	f.write("sub/deep/a.yaml", configMap("one", "3"))
	f.until("a change in the new folder", func() bool { return f.value(defaultMaps+"one") == "3" })
}

// What holds for a directory that leaves while the server runs holds for one that is missing at the start.
func TestDirectoryThatIsMissingAtTheStart(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", configMap("one", "1"))
	stop := f.start()
	f.until("the object", func() bool { return f.api.Get(defaultMaps+"one") != nil })
	stop()
	f.must(os.RemoveAll(f.dir))
	stop = f.start()
	defer stop()
	f.until("the report", func() bool { return len(f.warnings("is missing")) > 0 })
	if f.api.Get(defaultMaps+"one") == nil {
		t.Error("the object was removed")
	}
	f.must(os.Mkdir(f.dir, 0o700))
	f.until("the removal", func() bool { return f.api.Get(defaultMaps+"one") == nil })
}

func TestDirectoryIsMadeWhenNothingWasInIt(t *testing.T) {
	f := newFixture(t)
	f.must(os.RemoveAll(f.dir))
	stop := f.start()
	defer stop()
	f.until("the directory", func() bool {
		info, err := os.Stat(f.dir)
		return err == nil && info.Mode().Perm() == 0o700
	})
	f.write("a.yaml", configMap("one", "1"))
	f.until("the object", func() bool { return f.api.Get(defaultMaps+"one") != nil })
	if lines := f.warnings(""); len(lines) != 0 {
		t.Errorf("logged %q", lines)
	}
}

const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
	services    = "/apis/apiregistration.k8s.io/v1/apiservices/"
)

// Objects are remembered while their kind may only be hidden, and forgotten when it is gone.
func TestKindThatIsUnknown(t *testing.T) {
	for name, row := range map[string]struct {
		path   string
		origin kubeapi.Object
	}{
		"server behind the API does not answer": {services + "v1.example.org", kubeapi.Object{
			"kind": "APIService", "spec": kubeapi.Object{"group": "example.org", "service": kubeapi.Object{"name": "s"}}}},
		"definition is not served yet": {definitions + "things.example.org", kubeapi.Object{
			"kind": "CustomResourceDefinition", "spec": kubeapi.Object{"group": "example.org", "names": kubeapi.Object{"kind": "Thing"}}}},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.api.Define("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false)
			f.api.Define("apiregistration.k8s.io", "v1", "APIService", "apiservices", false)
			f.api.Define("example.org", "v1", "Thing", "things", true)
			f.api.Put(services+"v1.other.org", kubeapi.Object{"kind": "APIService", "spec": kubeapi.Object{"group": "other.org", "service": kubeapi.Object{"name": "s"}}})
			f.api.Put(services+"v1.example.org", kubeapi.Object{"kind": "APIService", "spec": kubeapi.Object{"group": "example.org"}})
			f.api.Put(row.path, row.origin)
			f.write("a.yaml", configMap("beside", "1")+"---\napiVersion: example.org/v1\nkind: Thing\nmetadata: {name: t}\n")
			thing := "/apis/example.org/v1/namespaces/default/things/t"
			stop := f.start()
			f.until("the object", func() bool { return f.api.Get(thing) != nil })
			stop()

			f.api.Undefine("example.org", "Thing")
			f.remove("a.yaml")
			stop = f.start()
			f.until("the report", func() bool { return len(f.warnings("a.yaml")) > 0 })
			f.until("the removal of what is beside it", func() bool { return f.api.Get(defaultMaps+"beside") == nil })
			f.api.Define("example.org", "v2", "Thing", "things", true) // known again, under another version
			f.api.Put(strings.Replace(thing, "v1", "v2", 1), f.api.Get(thing))
			f.until("the removal", func() bool { return f.api.Get(strings.Replace(thing, "v1", "v2", 1)) == nil })
			f.until("the end of the memory", func() bool { return !f.remembers("a.yaml") })
			stop()
		})
	}
}

func TestKindThatIsGoneIsForgotten(t *testing.T) {
	f := newFixture(t)
	f.api.Define("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false)
	f.api.Define("apiregistration.k8s.io", "v1", "APIService", "apiservices", false)
	f.api.Define("example.org", "v1", "Thing", "things", true)
	f.write("a.yaml", "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: t}\n")
	stop := f.start()
	f.until("the object", func() bool { return f.api.Get("/apis/example.org/v1/namespaces/default/things/t") != nil })
	stop()
	f.api.Undefine("example.org", "Thing")
	f.remove("a.yaml")
	stop = f.start()
	defer stop()
	f.until("the end of the memory", func() bool { return !f.remembers("a.yaml") })
	if lines := f.warnings(""); len(lines) != 0 {
		t.Errorf("logged %q", lines)
	}
}

// An API that does not list definitions now says nothing about what there is.
func TestKindIsNotForgottenOnAFailure(t *testing.T) {
	f := newFixture(t)
	f.api.Define("example.org", "v1", "Thing", "things", true)
	f.write("a.yaml", "apiVersion: example.org/v1\nkind: Thing\nmetadata: {name: t}\n")
	stop := f.start()
	f.until("the object", func() bool { return f.api.Get("/apis/example.org/v1/namespaces/default/things/t") != nil })
	stop()
	f.api.Undefine("example.org", "Thing")
	f.api.Refuse(func(r *http.Request) *metav1.Status {
		if strings.Contains(r.URL.Path, "customresourcedefinitions") {
			return &metav1.Status{Status: "Failure", Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "not now"}
		}
		return nil
	})
	f.remove("a.yaml")
	stop = f.start()
	defer stop()
	f.until("the report", func() bool { return len(f.warnings("unable to handle")) > 0 })
	if !f.remembers("a.yaml") {
		t.Error("the object is forgotten")
	}
}

func (f *fixture) remembers(file string) bool {
	data, _ := f.api.Get(inventory)["data"].(kubeapi.Object)
	text, _ := data["inventory.json"].(string)
	return strings.Contains(text, file)
}
