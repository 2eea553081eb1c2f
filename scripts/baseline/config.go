package main

import (
	"fmt"
	"net"
	"path/filepath"
)

// kubeconfig is the client configuration of the user whose certificate is dir/NAME.crt.
func kubeconfig(dir, name string, ip net.IP) []byte {
	return fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://%[3]s:6443", certificate-authority: %[1]s/ca.crt}}]
users: [{name: u, user: {client-certificate: %[1]s/%[2]s.crt, client-key: %[1]s/%[2]s.key}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, dir, name, ip)
}

// kubeletConfig allows for machines with cgroup v1 and without CAP_SYS_RESOURCE (the feature gate makes the kubelet go
// on where it may not write a sysctl).
func kubeletConfig(dir string) []byte {
	return fmt.Appendf(nil, `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[1]s/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: %[1]s/node.crt
tlsPrivateKeyFile: %[1]s/node.key
clusterDNS: [10.43.0.10]
clusterDomain: cluster.local
podLogsDir: %[1]s/podlogs
featureGates: {KubeletInUserNamespace: true}
`, dir)
}

func proxyConfig(dir string) []byte {
	return fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %s/proxy.yaml}
clusterCIDR: 10.42.0.0/16
mode: iptables
conntrack: {maxPerCore: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, dir)
}

func networkConfig(dir string) []byte {
	return fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "%s/ipam", "ranges": [[{"subnet": "10.42.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`, dir)
}

func containerdConfig(dir, plugins string) []byte {
	return fmt.Appendf(nil, `version = 3
root = "%[1]s/containerd/root"
state = "%[1]s/containerd/state"
[grpc]
address = "%[1]s/containerd.sock"
[metrics]
address = "127.0.0.1:1338"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["%[2]s"]
conf_dir = "%[1]s/cni"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "registry.k8s.io/pause:3.10.2"
`, dir, plugins)
}

func writeConfigs(dir, plugins string) error {
	for name, data := range map[string][]byte{
		"kubelet-config.yaml":                 kubeletConfig(dir),
		"proxy-config.yaml":                   proxyConfig(dir),
		filepath.Join("cni", "10-b.conflist"): networkConfig(dir),
		"containerd.toml":                     containerdConfig(dir, plugins),
	} {
		if err := writeFile(dir, name, data); err != nil {
			return err
		}
	}
	return nil
}

func apiServerArgs(k func(string) string, ip net.IP) []string {
	return []string{
		"--etcd-servers=unix://" + k("kine.sock"), "--bind-address=0.0.0.0", "--advertise-address=" + ip.String(),
		"--service-cluster-ip-range=10.43.0.0/16", "--allow-privileged=true",
		"--tls-cert-file=" + k("apiserver.crt"), "--tls-private-key-file=" + k("apiserver.key"), "--client-ca-file=" + k("ca.crt"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--kubelet-client-certificate=" + k("apikubelet.crt"), "--kubelet-client-key=" + k("apikubelet.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-key-file=" + k("sa.key"), "--service-account-signing-key-file=" + k("sa.key"),
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--requestheader-client-ca-file=" + k("front.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-username-headers=X-Remote-User", "--proxy-client-cert-file=" + k("frontclient.crt"),
		"--proxy-client-key-file=" + k("frontclient.key"), "--enable-aggregator-routing=true", "--shutdown-delay-duration=0",
	}
}

func controllerArgs(k func(string) string) []string {
	return []string{
		"--kubeconfig=" + k("kcm.yaml"), "--service-account-private-key-file=" + k("sa.key"), "--root-ca-file=" + k("ca.crt"),
		"--cluster-signing-cert-file=" + k("ca.crt"), "--cluster-signing-key-file=" + k("ca.key"),
		"--use-service-account-credentials=true", "--leader-elect=false", "--allocate-node-cidrs=true", "--cluster-cidr=10.42.0.0/16",
		"--authentication-kubeconfig=" + k("kcm.yaml"), "--authorization-kubeconfig=" + k("kcm.yaml"),
		"--requestheader-client-ca-file=" + k("front.crt"),
	}
}

func schedulerArgs(k func(string) string) []string {
	return []string{
		"--kubeconfig=" + k("sched.yaml"), "--leader-elect=false",
		"--authentication-kubeconfig=" + k("sched.yaml"), "--authorization-kubeconfig=" + k("sched.yaml"),
	}
}

func kubeletArgs(k func(string) string, ip net.IP) []string {
	return []string{
		"--config=" + k("kubelet-config.yaml"), "--kubeconfig=" + k("node.yaml"), "--node-ip=" + ip.String(),
		"--root-dir=" + k("kubelet"), "--cert-dir=" + k("kcerts"),
	}
}
