package resourcemetrics

import (
	"k8s.io/apiserver/pkg/registry/rest"
	clientset "k8s.io/client-go/kubernetes"
)

// readable is what the API server must find in a resource that can be read only.
type readable interface {
	rest.Getter
	rest.KindProvider
	rest.Lister
	rest.Scoper
	rest.SingularNameProvider
	rest.Storage
}

// storage is what both resources have.
type storage struct {
	client     clientset.Interface
	reader     *reader
	kind       string
	namespaced bool
}

func (s *storage) Kind() string          { return s.kind }
func (s *storage) NamespaceScoped() bool { return s.namespaced }
func (*storage) GetSingularName() string { return "" }
func (*storage) Destroy()                {}
