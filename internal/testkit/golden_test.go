package testkit

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// failing notes what a test would fail with.
type failing struct {
	testing.TB
	said string
}

func (f *failing) Helper() {}

func (f *failing) Fatal(args ...any) { f.said = fmt.Sprint(args...); runtime.Goexit() }

func (f *failing) Fatalf(format string, args ...any) { f.Fatal(fmt.Sprintf(format, args...)) }

func (f *failing) Errorf(format string, args ...any) { f.said = fmt.Sprintf(format, args...) }

// golden returns what Golden fails with.
func golden(name, got string) string {
	f, done := &failing{}, make(chan struct{})
	go func() {
		defer close(done)
		Golden(f, name, got)
	}()
	<-done
	return f.said
}

func TestGolden(t *testing.T) {
	t.Chdir(t.TempDir())
	if said := golden("a.txt", "one\n"); !strings.Contains(said, "no such file") {
		t.Errorf("without a file: %q", said)
	}
	*update = true
	said := golden("a.txt", "one\n")
	*update = false
	if !strings.Contains(said, "written anew") {
		t.Errorf("an update does not fail: %q", said)
	}
	if b, err := os.ReadFile(filepath.Join("testdata", "a.txt")); err != nil || string(b) != "one\n" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	if said := golden("a.txt", "one\n"); said != "" {
		t.Errorf("the same content fails: %q", said)
	}
	if said := golden("a.txt", "two\n"); !strings.Contains(said, "two") {
		t.Errorf("other content: %q", said)
	}
}
