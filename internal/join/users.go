package join

// ServiceUser is a service account whose place a node's own parts act in.
type ServiceUser struct{ namespace, account string }

// DNSUser is who the cluster's DNS server is, on every node.
var DNSUser = ServiceUser{"kube-system", "coredns"}

// Name is the user's name.
func (u ServiceUser) Name() string { return "system:serviceaccount:" + u.namespace + ":" + u.account }

// Groups are the user's groups, in order.
func (u ServiceUser) Groups() []string {
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + u.namespace}
}
