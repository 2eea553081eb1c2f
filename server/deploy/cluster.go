package deploy

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// fieldManager owns the fields that manifests set.
const fieldManager = "clusterd"

var applyOptions = metav1.ApplyOptions{FieldManager: fieldManager, Force: true}

// cluster is what manifests are applied to.
type cluster struct {
	objects dynamic.Interface
	kinds   *mapper
}

// place is where an object is in the API: the same for every way to name it.
type place struct {
	resource        schema.GroupResource
	namespace, name string
}

// locate finds the API for r. The error is a NoMatch one while its kind is unknown.
func (c *cluster) locate(r ref) (dynamic.ResourceInterface, place, error) {
	return c.resource(r, r.Version)
}

// find is locate for an object that may be there under another version of its
// kind by now.
func (c *cluster) find(r ref) (dynamic.ResourceInterface, place, error) {
	api, p, err := c.resource(r, r.Version)
	if meta.IsNoMatchError(err) {
		return c.resource(r)
	}
	return api, p, err
}

// resource finds the API for r in one of the versions, or any when none is given.
func (c *cluster) resource(r ref, versions ...string) (dynamic.ResourceInterface, place, error) {
	m, err := c.kinds.mapping(schema.GroupKind{Group: r.Group, Kind: r.Kind}, versions...)
	if err != nil {
		return nil, place{}, err
	}
	p := place{resource: m.Resource.GroupResource(), name: r.Name}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return c.objects.Resource(m.Resource), p, nil
	}
	p.namespace = r.Namespace
	if p.namespace == "" {
		p.namespace = metav1.NamespaceDefault
	}
	return c.objects.Resource(m.Resource).Namespace(p.namespace), p, nil
}

// tally counts what a pass did to the objects of a file.
type tally struct{ created, changed, removed int }

// apply makes the cluster have o.
func (c *cluster) apply(ctx context.Context, o *unstructured.Unstructured, t *tally) error {
	api, p, err := c.locate(refOf(o))
	if err != nil {
		return fmt.Errorf("find API of %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	o = o.DeepCopy()
	o.SetNamespace(p.namespace)
	before, err := api.Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read %s %s: %w", o.GetKind(), o.GetName(), err)
	}
	missing := err != nil
	after, err := api.Apply(ctx, o.GetName(), o, applyOptions)
	switch {
	case err != nil:
		return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
	case missing:
		t.created++
	case before.GetResourceVersion() != after.GetResourceVersion():
		t.changed++
	}
	return nil
}

// remove deletes what r names, unless it is among keep. An object of a kind
// that is gone is gone too.
func (c *cluster) remove(ctx context.Context, r ref, keep map[place]bool, t *tally) error {
	api, p, err := c.find(r)
	if meta.IsNoMatchError(err) {
		return c.forget(ctx, r, err)
	}
	if err == nil && keep[p] {
		return nil
	}
	if err == nil {
		err = api.Delete(ctx, r.Name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s %s: %w", r.Kind, r.Name, err)
	}
	t.removed++
	return nil
}

// forget returns nil if the kind of r, which discovery does not know, certainly
// is gone. Else it returns unknown, so that r is not lost from memory.
//
// Why discovery's word is not enough: it leaves out the groups whose server does
// not answer, and those of definitions that are not served yet.
func (c *cluster) forget(ctx context.Context, r ref, unknown error) error {
	why, err := c.mayExist(ctx, r)
	switch {
	case err != nil:
		return fmt.Errorf("remove %s %s: %w: %w", r.Kind, r.Name, unknown, err)
	case why != "":
		return fmt.Errorf("remove %s %s: %w, though there is %s", r.Kind, r.Name, unknown, why)
	}
	return nil
}

// mayExist names what the kind of r may come from: its definition, or a server
// behind the API to which its group belongs. It is empty when there is neither.
func (c *cluster) mayExist(ctx context.Context, r ref) (why string, err error) {
	for _, origin := range origins {
		all, err := c.objects.Resource(origin.resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return "", fmt.Errorf("list %s: %w", origin.resource.Resource, err)
		}
		for _, o := range all.Items {
			if group, _, _ := unstructured.NestedString(o.Object, "spec", "group"); group == r.Group && origin.gives(o.Object, r.Kind) {
				return o.GetKind() + " " + o.GetName(), nil
			}
		}
	}
	return "", nil
}

// origins are the resources that add kinds to the API. An APIService without a
// service stands for what the API server has itself, which discovery always knows.
var origins = []struct {
	resource schema.GroupVersionResource
	gives    func(o map[string]any, kind string) bool
}{
	{
		schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
		func(o map[string]any, kind string) bool {
			defined, _, _ := unstructured.NestedString(o, "spec", "names", "kind")
			return defined == kind
		},
	},
	{
		schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
		func(o map[string]any, _ string) bool {
			service, _, _ := unstructured.NestedMap(o, "spec", "service")
			return service != nil
		},
	},
}
