package apiserver

import (
	"testing"

	clientset "k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/internal/testkit/kubeapi"
)

const bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/"

// TestBindKubeletUser binds it, finds it bound, and binds it again after somebody has spoilt the binding.
func TestBindKubeletUser(t *testing.T) {
	api := kubeapi.New(t)
	api.Define("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", false)
	client, err := clientset.NewForConfig(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	path := bindings + "clusterd:" + KubeletUser
	bind := func(writes int) {
		t.Helper()
		before := len(api.Writes())
		if err := bindKubeletUser(client); err != nil {
			t.Fatal(err)
		}
		if got := api.Writes()[before:]; len(got) != writes {
			t.Errorf("wrote %q, want %d", got, writes)
		}
		binding := api.Get(path)
		role, _ := binding["roleRef"].(kubeapi.Object)
		subjects, _ := binding["subjects"].([]any)
		if role["name"] != "system:kubelet-api-admin" || len(subjects) != 1 || subjects[0].(kubeapi.Object)["name"] != "kube-apiserver-kubelet-client" {
			t.Errorf("the binding is %v", binding)
		}
	}
	bind(1)
	bind(0)
	spoilt := api.Get(path)
	spoilt["subjects"] = []any{}
	api.Put(path, spoilt)
	bind(1)
	api.Delete(path)
	bind(1)
}
