package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

const (
	inventoryNamespace = "kube-system"
	inventoryName      = "clusterd-manifests"
	inventoryKey       = "inventory.json"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// ref names an object the way a file does: without a namespace where the file
// has none.
type ref struct {
	Group     string `json:"group,omitempty"`
	Version   string `json:"version"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func refOf(o *unstructured.Unstructured) ref {
	k := o.GroupVersionKind()
	return ref{k.Group, k.Version, k.Kind, o.GetNamespace(), o.GetName()}
}

// refs names the objects of f.
func (f file) refs() []ref {
	out := []ref{}
	for _, o := range f.objects {
		out = append(out, refOf(o))
	}
	return out
}

// inventory remembers, in the cluster, what may have been applied from which file.
type inventory struct {
	Files map[string][]ref `json:"files"`
	name  string           // of the ConfigMap
	saved string
}

// load reads the inventory from the cluster; a missing one is empty.
func load(ctx context.Context, objects dynamic.Interface, of string) (*inventory, error) {
	i := &inventory{Files: map[string][]ref{}, name: inventoryName}
	if of != "" {
		i.name += "-" + of
	}
	o, err := objects.Resource(configMaps).Namespace(inventoryNamespace).Get(ctx, i.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return i, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read inventory: %w", err)
	}
	i.saved, _, _ = unstructured.NestedString(o.Object, "data", inventoryKey)
	if i.saved == "" { // somebody has emptied it
		return i, nil
	}
	if err := json.Unmarshal([]byte(i.saved), i); err != nil {
		return nil, fmt.Errorf("read inventory in ConfigMap %s/%s: %w", inventoryNamespace, i.name, err)
	}
	if i.Files == nil {
		i.Files = map[string][]ref{}
	}
	return i, nil
}

// save writes the inventory if it is not what the cluster has.
func (i *inventory) save(ctx context.Context, objects dynamic.Interface) error {
	text, err := json.Marshal(i)
	if err != nil || string(text) == i.saved {
		return err
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]any{"name": i.name, "namespace": inventoryNamespace},
		"data":       map[string]any{inventoryKey: string(text)},
	}}
	_, err = objects.Resource(configMaps).Namespace(inventoryNamespace).Apply(ctx, i.name, o, applyOptions)
	if err != nil {
		return fmt.Errorf("write inventory: %w", err)
	}
	i.saved = string(text)
	return nil
}

// add remembers the objects of f beside those it had before.
func (i *inventory) add(f file) {
	have := i.Files[f.name]
	for _, r := range f.refs() {
		if !slices.Contains(have, r) {
			have = append(have, r)
		}
	}
	if have == nil {
		have = []ref{}
	}
	i.Files[f.name] = have
}

// hasUserFiles reports whether anything but addons is remembered.
func (i *inventory) hasUserFiles() bool {
	for name := range i.Files {
		if !strings.HasPrefix(name, addonPrefix) {
			return true
		}
	}
	return false
}

// left lists the files that are remembered and not in c, nor hidden in it.
func (i *inventory) left(c contents) []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		if !slices.ContainsFunc(c.files, func(f file) bool { return f.name == name }) && !c.hides(name) {
			names = append(names, name)
		}
	}
	return names
}
