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
	m, err := c.kinds.mapping(schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind})
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
	api, p, err := c.locate(r)
	if meta.IsNoMatchError(err) || keep[p] {
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
