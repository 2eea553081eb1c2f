package server

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"
)

// maxNodeName is the length of a label's value: the node carries its name in one.
const maxNodeName = 63

var taintEffects = []string{
	string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute),
}

// nodeName defaults to the host's name.
func (r reader) nodeName() string {
	name := r.v.String("node-name")
	remedy := ""
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			r.problem("node-name", "read the host name: %w", err)
			return ""
		}
		name = strings.ToLower(host)
		remedy = " (it is this host's name: give another one)"
	}
	if len(name) > maxNodeName || validation.IsDNS1123Subdomain(name) != nil {
		r.problem("node-name", "%q is not a DNS name of at most %d lower-case letters, digits, - and .%s", name, maxNodeName, remedy)
	}
	return name
}

// nodeIPs takes at most one address of each family by which others can reach the node.
func (r reader) nodeIPs() []netip.Addr {
	all := r.addresses("node-ip")
	for _, a := range all {
		if !a.IsGlobalUnicast() {
			r.problem("node-ip", "%s is not an address by which others can reach the node", a)
		}
	}
	if tooMany(all, func(a netip.Addr) netip.Addr { return a }) {
		r.problem("node-ip", "takes one address, or one IPv4 and one IPv6 address")
	}
	return all
}

func (r reader) nodeLabels() map[string]string {
	labels := map[string]string{}
	for _, text := range r.v.Split("node-label") {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			r.problem("node-label", "%q does not have the form key=value", text)
			continue
		}
		r.checkLabel("node-label", text, key, value)
		if isReserved(key) && !kubeletapis.IsKubeletLabel(key) {
			r.problem("node-label", "%q: a node may not give itself this label: of kubernetes.io and k8s.io only those of %s, and %s",
				text, strings.Join(kubeletapis.KubeletLabelNamespaces(), " and "), strings.Join(kubeletapis.KubeletLabels(), ", "))
		}
		if old, twice := labels[key]; twice && old != value {
			r.problem("node-label", "%s is given two values, %q and %q", key, old, value)
		}
		labels[key] = value
	}
	return labels
}

// isReserved is whether a label's key belongs to Kubernetes itself, which lets nodes choose some of them only.
func isReserved(key string) bool {
	prefix, _, _ := strings.Cut(key, "/")
	return prefix != key && slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"}, func(domain string) bool {
		return prefix == domain || strings.HasSuffix(prefix, "."+domain)
	})
}

// checkLabel reports the first fault of a label's or taint's key and of its value.
func (r reader) checkLabel(option, text, key, value string) {
	if faults := content.IsLabelKey(key); faults != nil {
		r.problem(option, "%q: the key %q is no label key: %s", text, key, faults[0])
	}
	if faults := content.IsLabelValue(value); faults != nil {
		r.problem(option, "%q: the value %q is no label value: %s", text, value, faults[0])
	}
}

// nodeTaints takes KEY=VALUE:EFFECT and KEY:EFFECT.
func (r reader) nodeTaints() []corev1.Taint {
	var taints []corev1.Taint
	seen := map[string]bool{}
	for _, text := range r.v.Split("node-taint") {
		pair, effect, ok := strings.Cut(text, ":")
		if !ok {
			r.problem("node-taint", "%q does not have the form key=value:effect", text)
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		r.checkLabel("node-taint", text, key, value)
		if !slices.Contains(taintEffects, effect) {
			r.problem("node-taint", "%q: the effect %q is not one of %s", text, effect, strings.Join(taintEffects, ", "))
		}
		if seen[key+":"+effect] {
			r.problem("node-taint", "%s is given twice with the effect %s", key, effect)
		}
		seen[key+":"+effect] = true
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return taints
}

// bindAddress may be unspecified, which is every address of the host.
func (r reader) bindAddress() netip.Addr {
	all := r.addresses("bind-address")
	if len(all) == 1 && !all[0].IsMulticast() {
		return all[0]
	}
	if len(all) > 0 || r.v.String("bind-address") == "" {
		r.problem("bind-address", "%q is not one address to listen on", r.v.String("bind-address"))
	}
	return netip.Addr{}
}

func (r reader) advertiseAddress() netip.Addr {
	all := r.addresses("advertise-address")
	if len(all) == 0 {
		return netip.Addr{}
	}
	if len(all) > 1 || !all[0].IsGlobalUnicast() {
		r.problem("advertise-address", "%q is not one address by which others can reach the API server", r.v.String("advertise-address"))
	}
	return all[0]
}

// tlsSANs takes IP addresses and DNS names, also with a wildcard as their first label.
func (r reader) tlsSANs() []string {
	all := r.v.Split("tls-san")
	for _, san := range all {
		if _, err := netip.ParseAddr(san); err == nil {
			continue
		}
		name := strings.TrimPrefix(strings.ToLower(san), "*.")
		if validation.IsDNS1123Subdomain(name) != nil {
			r.problem("tls-san", "%q is neither an IP address nor a DNS name", san)
		}
	}
	return all
}

func (r reader) clusterDomain() string {
	domain := strings.TrimSuffix(r.v.String("cluster-domain"), ".")
	if validation.IsDNS1123Subdomain(domain) != nil {
		r.problem("cluster-domain", "%q is not a DNS domain", r.v.String("cluster-domain"))
	}
	return domain
}
