package options

import (
	"net/netip"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/nodename"
)

// maxNodeName is the length of a label's value: the node carries its name in one.
const maxNodeName = 63

var taintEffects = []string{
	string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute),
}

// nodeName is the one that is asked for, else the one that the node in the data directory has had so far, else the host's.
// former is the second if it is another one.
func (r Reader) nodeName(dataDir string) (name, former string) {
	if dir, err := datadir.New(dataDir); err == nil {
		former = nodename.Read(dir)
	}
	if r.V.String("node-name") == "" && former != "" {
		return former, ""
	}
	if name = r.newNodeName(); name == former {
		former = ""
	}
	return name, former
}

func (r Reader) newNodeName() string {
	name := r.V.String("node-name")
	remedy := ""
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			r.Problem("node-name", "read the host name: %w", err)
			return ""
		}
		name = strings.ToLower(host)
		remedy = " (it is this host's name: give another one)"
	}
	if len(name) > maxNodeName || validation.IsDNS1123Subdomain(name) != nil {
		r.Problem("node-name", "%q is not a DNS name of at most %d lower-case letters, digits, - and .%s", name, maxNodeName, remedy)
	}
	return name
}

// nodeIPs takes at most one address of each family by which others can reach the node.
func (r Reader) nodeIPs(option string) []netip.Addr {
	all := r.Addresses(option)
	for _, a := range all {
		if !a.IsGlobalUnicast() {
			r.Problem(option, "%s is not an address by which others can reach the node", a)
		}
	}
	if TooMany(all, func(a netip.Addr) netip.Addr { return a }) {
		r.Problem(option, "takes one address, or one IPv4 and one IPv6 address")
	}
	return all
}

func (r Reader) nodeLabels() map[string]string {
	labels := map[string]string{}
	for _, text := range r.V.Split("node-label") {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			r.Problem("node-label", "%q does not have the form key=value", text)
			continue
		}
		r.checkLabel("node-label", text, key, value)
		if isReserved(key) && !kubeletapis.IsKubeletLabel(key) {
			r.Problem("node-label", "%q: a node may not give itself this label: of kubernetes.io and k8s.io only those of %s, and %s",
				text, strings.Join(kubeletapis.KubeletLabelNamespaces(), " and "), strings.Join(kubeletapis.KubeletLabels(), ", "))
		}
		if old, twice := labels[key]; twice && old != value {
			r.Problem("node-label", "%s is given two values, %q and %q", key, old, value)
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
func (r Reader) checkLabel(option, text, key, value string) {
	if faults := content.IsLabelKey(key); faults != nil {
		r.Problem(option, "%q: the key %q is no label key: %s", text, key, faults[0])
	}
	if faults := content.IsLabelValue(value); faults != nil {
		r.Problem(option, "%q: the value %q is no label value: %s", text, value, faults[0])
	}
}

// nodeTaints takes KEY=VALUE:EFFECT and KEY:EFFECT.
func (r Reader) nodeTaints() []corev1.Taint {
	var taints []corev1.Taint
	seen := map[string]bool{}
	for _, text := range r.V.Split("node-taint") {
		pair, effect, ok := strings.Cut(text, ":")
		if !ok {
			r.Problem("node-taint", "%q does not have the form key=value:effect", text)
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		r.checkLabel("node-taint", text, key, value)
		if !slices.Contains(taintEffects, effect) {
			r.Problem("node-taint", "%q: the effect %q is not one of %s", text, effect, strings.Join(taintEffects, ", "))
		}
		if seen[key+":"+effect] {
			r.Problem("node-taint", "%s is given twice with the effect %s", key, effect)
		}
		seen[key+":"+effect] = true
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
	}
	return taints
}
