package deploy

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// addonPrefix marks the addons' files among the names of all files.
const addonPrefix = "addon:"

// file is one manifest file.
type file struct {
	name    string // addon:ADDON/NAME, or the path below the user's directory
	digest  string // of the text, variables replaced
	objects []*unstructured.Unstructured
	err     error // why objects is not what the file says
}

// newFile reads the objects in text.
func newFile(name string, text []byte) file {
	sum := sha256.Sum256(text)
	f := file{name: name, digest: hex.EncodeToString(sum[:])}
	f.objects, f.err = parse(text)
	return f
}

// isManifest reports whether a path names a manifest. Hidden files are those an
// editor is still busy with.
func isManifest(name string) bool {
	base := path.Base(name)
	if strings.HasPrefix(base, ".") {
		return false
	}
	return slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(base))
}

// readAddons reads the addons that are not disabled.
func (c Config) readAddons() ([]file, error) {
	if c.Embedded == nil {
		return nil, nil
	}
	addons := readTree(c.Embedded, func(name string, text []byte) file {
		replaced, err := replace(text, c.Vars)
		f := newFile(addonPrefix+name, replaced)
		f.err = errors.Join(err, f.err)
		return f
	}, c.disabled)
	var errs []error
	for _, h := range addons.holes {
		errs = append(errs, h.err)
	}
	return addons.files, errors.Join(errs...)
}

// disabled reports whether name is of an addon to leave out.
func (c Config) disabled(name string) bool {
	addon, _, _ := strings.Cut(name, "/")
	return slices.Contains(c.Disabled, addon)
}

// readUser reads the user's directory and the ones in it.
func (c Config) readUser() contents {
	if c.UserDir == "" {
		return contents{}
	}
	return readTree(os.DirFS(c.UserDir), newFile, func(string) bool { return false })
}

var variable = regexp.MustCompile(`\$\{([A-Z][A-Z0-9_]*)\}`)

// replace puts the values of vars in place of ${NAME}.
func replace(text []byte, vars map[string]string) ([]byte, error) {
	var errs []error
	out := variable.ReplaceAllFunc(text, func(match []byte) []byte {
		name := string(match[2 : len(match)-1])
		value, ok := vars[name]
		if !ok {
			errs = append(errs, fmt.Errorf("variable %s has no value", name))
		}
		return []byte(value)
	})
	return out, errors.Join(errs...)
}

// parse reads the YAML or JSON documents in text, lists as their items, with
// what others depend on first.
func parse(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			objects, err = appendDocument(objects, document)
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", n, err)
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	return objects, nil
}

// rank orders the objects of a file: others need definitions and namespaces.
func rank(o *unstructured.Unstructured) int {
	switch o.GroupVersionKind().GroupKind().String() {
	case "CustomResourceDefinition.apiextensions.k8s.io":
		return 0
	case "Namespace":
		return 1
	}
	return 2
}

func appendDocument(objects []*unstructured.Unstructured, document []byte) ([]*unstructured.Unstructured, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil || string(text) == "null" {
		return objects, err
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(text); err != nil {
		return nil, err
	}
	if o.IsList() {
		err := o.EachListItem(func(item runtime.Object) error {
			objects = append(objects, item.(*unstructured.Unstructured))
			return check(item.(*unstructured.Unstructured))
		})
		return objects, err
	}
	return append(objects, o), check(o)
}

// check refuses what cannot be applied whatever the cluster says.
func check(o *unstructured.Unstructured) error {
	if o.GetAPIVersion() == "" || o.GetKind() == "" || o.GetName() == "" {
		return fmt.Errorf("an object needs apiVersion, kind and metadata.name, this has %q, %q and %q", o.GetAPIVersion(), o.GetKind(), o.GetName())
	}
	return nil
}

// oneLine is an error's text without line breaks.
func oneLine(err error) string {
	return strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
}
