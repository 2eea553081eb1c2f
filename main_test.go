package main

import (
	"bytes"
	"flag"
	"os"
	"testing"

	"github.com/clusterd/clusterd/internal/cli"
)

const page = "docs/flags.md"

var update = flag.Bool("update", false, "write "+page+" anew; the test fails all the same")

// TestFlagsPage keeps the page about flags true.
func TestFlagsPage(t *testing.T) {
	var want bytes.Buffer
	if err := cli.Reference(&want, newApp(), "server", "agent"); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(page, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Fatal(page + " is written anew: look at it and run the test without -update")
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what the code says: run go test -run %s -update .", page, t.Name())
	}
}
