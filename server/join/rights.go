package join

import (
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"github.com/clusterd/clusterd/internal/join"
	"github.com/clusterd/clusterd/internal/tunnel"
)

const (
	tunnelRole  = "clusterd:hold-tunnels"
	requestRole = "clusterd:request-certificates"
	readRole    = "clusterd:read-cluster"
)

// grantRights lets holders of a token ask for certificates, and nodes hold tunnels and read about the cluster. That they may ask
// says nothing about what they get.
func (j *Joining) grantRights() error {
	request := rbacv1.PolicyRule{
		APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"create", "get", "list", "watch"},
	}
	if err := j.grant(requestRole, join.BootstrapGroup, request); err != nil {
		return err
	}
	if err := j.grant(tunnelRole, user.NodesGroup, rbacv1.PolicyRule{NonResourceURLs: []string{tunnel.Path}, Verbs: []string{"get"}}); err != nil {
		return err
	}
	return j.grantReading()
}

// auto lets administrators opt out of what clusterd keeps granted.
func auto() map[string]string { return map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"} }

// grant gives a group the right by a role of the name.
func (j *Joining) grant(name, to string, right rbacv1.PolicyRule) error {
	meta := metav1.ObjectMeta{Name: name, Annotations: auto()}
	role := reconciliation.ReconcileRoleOptions{
		Role:    reconciliation.ClusterRoleRuleOwner{ClusterRole: &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{right}}},
		Client:  reconciliation.ClusterRoleModifier{Client: j.client.RbacV1().ClusterRoles()},
		Confirm: true,
	}
	if _, err := role.Run(); err != nil {
		return fmt.Errorf("make the role %s: %w", name, err)
	}
	binding := reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{group(to)},
		}},
		Client:  reconciliation.ClusterRoleBindingClientAdapter{Client: j.client.RbacV1().ClusterRoleBindings()},
		Confirm: true,
	}
	if _, err := binding.Run(); err != nil {
		return fmt.Errorf("bind the role %s: %w", name, err)
	}
	return nil
}

func (j *Joining) grantReading() error {
	meta := metav1.ObjectMeta{Name: readRole, Namespace: join.InfoNamespace, Annotations: auto()}
	role := reconciliation.ReconcileRoleOptions{
		Role: reconciliation.RoleRuleOwner{Role: &rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{join.InfoName}, Verbs: []string{"get", "list", "watch"},
			}},
		}},
		Client:  reconciliation.RoleModifier{Client: j.client.RbacV1(), NamespaceClient: j.client.CoreV1().Namespaces()},
		Confirm: true,
	}
	if _, err := role.Run(); err != nil {
		return fmt.Errorf("make the role %s: %w", readRole, err)
	}
	binding := reconciliation.ReconcileRoleBindingOptions{
		RoleBinding: reconciliation.RoleBindingAdapter{RoleBinding: &rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: readRole},
			Subjects:   []rbacv1.Subject{group(user.NodesGroup)},
		}},
		Client:  reconciliation.RoleBindingClientAdapter{Client: j.client.RbacV1(), NamespaceClient: j.client.CoreV1().Namespaces()},
		Confirm: true,
	}
	if _, err := binding.Run(); err != nil {
		return fmt.Errorf("bind the role %s: %w", readRole, err)
	}
	return nil
}

func group(name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
}
