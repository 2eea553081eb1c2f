package repo_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"
)

var requirement = regexp.MustCompile(`(?m)^\s+(\S+/\S+) (v\S+)`)

// TestBaselineHasTheSameVersions compares the requirements of the module that clusterd is measured against.
func TestBaselineHasTheSameVersions(t *testing.T) {
	t.Parallel()
	ours, theirs := requirements(t, "../../go.mod"), requirements(t, "../../scripts/baseline/go.mod")
	common := 0
	for _, module := range slices.Sorted(maps.Keys(theirs)) {
		version, both := ours[module]
		if both {
			common++
		}
		if both && version != theirs[module] {
			t.Errorf("scripts/baseline/go.mod has %s %s, go.mod has %s", module, theirs[module], version)
		}
	}
	if common < 10 {
		t.Errorf("the modules have %d requirements in common, which cannot be all", common)
	}
}

func requirements(t *testing.T, file string) map[string]string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, m := range requirement.FindAllStringSubmatch(string(b), -1) {
		all[m[1]] = m[2]
	}
	return all
}
