package deploy

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestParse(t *testing.T) {
	for _, row := range []struct {
		name, text string
		want       []string // kinds, in the order of application
		err        string
	}{
		{"empty", "", nil, ""},
		{"comments only", "# nothing\n---\n# here\n", nil, ""},
		{"two documents", "apiVersion: v1\nkind: A\nmetadata: {name: a}\n---\napiVersion: v1\nkind: B\nmetadata: {name: b}\n", []string{"A", "B"}, ""},
		{"namespace first", "apiVersion: v1\nkind: A\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: b}\n", []string{"Namespace", "A"}, ""},
		{"list", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A, metadata: {name: a}}\n", []string{"A"}, ""},
		{"json", `{"apiVersion":"v1","kind":"A","metadata":{"name":"a"}}`, []string{"A"}, ""},
		{"no name", "apiVersion: v1\nkind: A\n", nil, "document 1"},
		{"item without a name", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: A}\n", nil, "metadata.name"},
		{"no kind", "---\napiVersion: v1\nmetadata: {name: a}\n", nil, "document 1"},
		{"key twice", "apiVersion: v1\nkind: A\nkind: B\nmetadata: {name: a}\n", nil, "document 1"},
		{"second is broken", "apiVersion: v1\nkind: A\nmetadata: {name: a}\n---\n[\n", nil, "document 2"},
	} {
		objects, err := parse([]byte(row.text))
		var kinds []string
		for _, o := range objects {
			kinds = append(kinds, o.GetKind())
		}
		if !slices.Equal(kinds, row.want) {
			t.Errorf("%s: got %q", row.name, kinds)
		}
		if (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error(), row.err) {
			t.Errorf("%s: got error %v", row.name, err)
		}
	}
}

func TestReplace(t *testing.T) {
	vars := map[string]string{"A": "1", "B_2": "two"}
	for _, row := range []struct{ in, want, err string }{
		{"a ${A} b ${B_2}", "a 1 b two", ""},
		{"$A ${a} $${} ${A", "$A ${a} $${} ${A", ""},
		{"${MISSING}", "", "MISSING"},
	} {
		got, err := replace([]byte(row.in), vars)
		if string(got) != row.want || (err == nil) != (row.err == "") || err != nil && !strings.Contains(err.Error(), row.err) {
			t.Errorf("%q: got %q, %v", row.in, got, err)
		}
	}
}

func TestReadAddonsTakesManifestsOnly(t *testing.T) {
	some := &fstest.MapFile{Data: []byte("apiVersion: v1\nkind: A\nmetadata: {name: a}\n")}
	c := Config{
		Embedded: fstest.MapFS{"b/x.yml": some, "a/x.yaml": some, "a/.x.yaml.swp": some, "a/.hidden.yaml": some, "a/README.md": some, "off/x.yaml": some, "offer/x.json": some},
		Disabled: []string{"off"},
	}
	files, err := c.readAddons()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.name)
	}
	if want := []string{"addon:a/x.yaml", "addon:b/x.yml", "addon:offer/x.json"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}
