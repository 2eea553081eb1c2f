package kubelet

import (
	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
)

// flags are the kubelet's own, bound to s.
func flags(s *options.KubeletServer) *pflag.FlagSet {
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.AddFlags(fs)
	return fs
}
