package apiserver

import (
	"context"
	"fmt"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientset "k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"github.com/clusterd/clusterd/internal/inproc"
)

// KubeletUser is who the API server is to kubelets, by the certificate in Files.KubeletCert. It may do what the role
// system:kubelet-api-admin lets it do, and nothing in the API but that: whoever gets hold of that certificate has the nodes'
// pods, but not the cluster.
const KubeletUser = "kube-apiserver-kubelet-client"

// kubeletHook makes the API server unready until KubeletUser has its rights, since a kubelet remembers for half a minute
// that somebody had none. It is left out where RBAC is not used: there the rights come from elsewhere.
const kubeletHook = "clusterd/kubelet-user"

const hookRetry = 50 * time.Millisecond

// addKubeletHook makes the server bind KubeletUser to its role when it starts, also after somebody has unbound it.
func (s *Server) addKubeletHook(g *genericapiserver.GenericAPIServer) error {
	client, err := clientset.NewForConfig(s.cfg.Transport.Config(inproc.User("system:apiserver", "system:masters"), "kube-apiserver"))
	if err != nil {
		return fmt.Errorf("make the client for the kubelets' user: %w", err)
	}
	return g.AddPostStartHook(kubeletHook, func(hook genericapiserver.PostStartHookContext) error {
		_ = wait.PollUntilContextCancel(hook, hookRetry, true, func(context.Context) (bool, error) {
			err := bindKubeletUser(client)
			if err != nil {
				s.log.Debug("kubelets' user not bound yet", "error", err)
			}
			return err == nil, nil
		})
		return nil // also when the server ends before
	})
}

func bindKubeletUser(client clientset.Interface) error {
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "clusterd:" + KubeletUser,
			Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
		},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:kubelet-api-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: KubeletUser}},
	}
	o := reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: binding},
		Client:      reconciliation.ClusterRoleBindingClientAdapter{Client: client.RbacV1().ClusterRoleBindings()},
		Confirm:     true,
	}
	if _, err := o.Run(); err != nil {
		return fmt.Errorf("bind %s: %w", KubeletUser, err)
	}
	return nil
}
