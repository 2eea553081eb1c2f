package server_test

import (
	"crypto/ed25519"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/options"
	"github.com/clusterd/clusterd/internal/snapshot"
	"github.com/clusterd/clusterd/server"
)

// parse reads a command line without the host's own configuration file.
func parse(t *testing.T, args ...string) (server.Config, error) {
	t.Helper()
	empty := filepath.Join(t.TempDir(), "config.yaml")
	write(t, empty, "")
	return parseWith(t, empty, args...)
}

func parseWith(t *testing.T, file string, args ...string) (server.Config, error) {
	t.Helper()
	var cfg server.Config
	var found error
	app := &cli.App{
		Flags: server.Flags(), DisableSliceFlagSeparator: true,
		Action: func(c *cli.Context) error { cfg, found = server.FromContext(c); return nil },
	}
	if err := app.RunContext(t.Context(), append([]string{"test", "--config=" + file}, args...)); err != nil {
		t.Fatal(err)
	}
	return cfg, found
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func addrs(text ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range text {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func prefixes(text ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range text {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func TestDefaults(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse(t)
	if err != nil {
		t.Fatal(err)
	}
	want := server.Config{
		Node: options.Node{
			DataDir: "/var/lib/clusterd", NodeName: strings.ToLower(host), NodeLabels: map[string]string{}, LogFormat: "text",
		},
		BindAddress:          netip.IPv4Unspecified(),
		HTTPSListenPort:      6443,
		ClusterCIDRs:         prefixes("10.42.0.0/16"),
		ServiceCIDRs:         prefixes("10.43.0.0/16"),
		FlannelBackend:       "vxlan",
		ServiceNodePortRange: utilnet.PortRange{Base: 30000, Size: 2768},
		ClusterDNS:           addrs("10.43.0.10"),
		ClusterDomain:        "cluster.local",
		WriteKubeconfig:      "/etc/clusterd/kubeconfig.yaml",
		WriteKubeconfigMode:  0o600,
		Snapshots:            server.SnapshotConfig{Schedule: schedule(t, "0 */12 * * *"), Name: "scheduled", Retention: 5},
	}
	if want.Datastore, err = endpoint.Parse("", endpoint.Files{}); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

// caHash is that of some authority.
var caHash = strings.Repeat("0123456789abcdef", 4)

// everything sets each option in a file to something else than its default.
const everything = `
data-dir: /srv/clusterd
token: K10HASH::s3cret
join: https://192.168.7.4
node-name: one.example.org
node-ip: [192.168.7.5, "fd07::5"]
node-external-ip: 203.0.113.5
node-label: ["disk=ssd,zone=a", example.org/empty=]
node-taint: ["gpu=yes:NoSchedule", "old:NoExecute"]
bind-address: 192.168.7.5
https-listen-port: 7443
advertise-address: 192.168.7.6
tls-san: [api.example.org, "*.example.org", 192.168.7.9]
cluster-cidr: 10.52.0.0/16,fd52::/56
service-cidr: [10.53.0.0/20, "fd53::/112"]
flannel-backend: host-gw
service-node-port-range: 20000-20099
cluster-domain: k8s.example.org.
resolv-conf: FILE
write-kubeconfig: /srv/kubeconfig
write-kubeconfig-mode: 0640
disable: dns,dns
disable-agent: true
datastore-endpoint: postgres://u:p@db.example.org/cluster
datastore-cafile: DIR/c.crt
datastore-certfile: DIR/c.crt
datastore-keyfile: DIR/c.key
kube-apiserver-arg: ["--feature-gates=A=true,B=false", v=2]
kube-controller-manager-arg: [controllers=*]
kube-scheduler-arg: [v=3]
kube-scheduler-config: FILE
kubelet-arg: [max-pods=20, node-status-update-frequency=]
kube-proxy-arg: [v=4]
proxy-mode: iptables
pod-manifest-path: /srv/pods
pod-manifest-url: https://example.org/pods.yaml
pause-image: example.org/pause:1
snapshotter: native
snapshot-schedule-cron: "@daily"
snapshot-retention: 7
snapshot-name: nightly
snapshot-dir: /srv/snapshots
snapshot-s3: true
snapshot-s3-endpoint: s3.example.org:9000
snapshot-s3-endpoint-ca: FILE
snapshot-s3-skip-ssl-verify: true
snapshot-s3-insecure: true
snapshot-s3-bucket: backups
snapshot-s3-region: eu-1
snapshot-s3-folder: /one//two/
snapshot-s3-access-key: key
snapshot-s3-secret-key: s3cret
debug: true
log-format: json
`

func TestEverything(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	files := certificate(t, filepath.Dir(file))
	write(t, file, strings.NewReplacer("HASH", caHash, "FILE", file, "DIR", filepath.Dir(file)).Replace(everything))
	got, err := parseWith(t, file)
	if err != nil {
		t.Fatal(err)
	}
	store, err := endpoint.Parse("postgres://u:p@db.example.org/cluster", files)
	if err != nil {
		t.Fatal(err)
	}
	want := server.Config{
		Node: options.Node{
			NodeTaints: []corev1.Taint{
				{Key: "gpu", Value: "yes", Effect: corev1.TaintEffectNoSchedule}, {Key: "old", Effect: corev1.TaintEffectNoExecute},
			},
			DataDir:         "/srv/clusterd",
			NodeName:        "one.example.org",
			NodeIPs:         addrs("192.168.7.5", "fd07::5"),
			NodeExternalIPs: addrs("203.0.113.5"),
			NodeLabels:      map[string]string{"disk": "ssd", "zone": "a", "example.org/empty": ""},
			ResolvConf:      file,
			KubeletArgs:     []string{"max-pods=20", "node-status-update-frequency="},
			ProxyArgs:       []string{"v=4"},
			ProxyMode:       "iptables",
			PodManifestPath: "/srv/pods",
			PodManifestURL:  "https://example.org/pods.yaml",
			PauseImage:      "example.org/pause:1",
			Snapshotter:     "native",
			Debug:           true,
			LogFormat:       "json",
		},
		Token:                 "s3cret",
		CAHash:                caHash,
		Join:                  "https://192.168.7.4:6443",
		BindAddress:           netip.MustParseAddr("192.168.7.5"),
		HTTPSListenPort:       7443,
		AdvertiseAddress:      netip.MustParseAddr("192.168.7.6"),
		TLSSANs:               []string{"api.example.org", "*.example.org", "192.168.7.9"},
		ClusterCIDRs:          prefixes("10.52.0.0/16", "fd52::/56"),
		ServiceCIDRs:          prefixes("10.53.0.0/20", "fd53::/112"),
		FlannelBackend:        "host-gw",
		ServiceNodePortRange:  utilnet.PortRange{Base: 20000, Size: 100},
		ClusterDNS:            addrs("10.53.0.10", "fd53::a"),
		ClusterDomain:         "k8s.example.org",
		WriteKubeconfig:       "/srv/kubeconfig",
		WriteKubeconfigMode:   0o640,
		Datastore:             store,
		Disable:               []string{"dns"},
		DisableAgent:          true,
		APIServerArgs:         []string{"feature-gates=A=true,B=false", "v=2"},
		ControllerManagerArgs: []string{"controllers=*"},
		SchedulerArgs:         []string{"v=3"},
		SchedulerConfig:       file,
		Snapshots: server.SnapshotConfig{
			Schedule: schedule(t, "@daily"), Name: "nightly", Retention: 7, Dir: "/srv/snapshots",
			S3: &snapshot.BucketConfig{
				Endpoint: "s3.example.org:9000", EndpointCA: file, SkipSSLVerify: true, Insecure: true, Name: "backups", Region: "eu-1",
				Folder: "one/two", AccessKey: "key", SecretKey: "s3cret",
			},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\nwant\n%+v", got, want)
	}
}

// certificate makes the files c.crt and c.key in a directory.
func certificate(t *testing.T, dir string) endpoint.Files {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "c"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(nil, template, template, public, private)
	if err != nil {
		t.Fatal(err)
	}
	key, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	files := endpoint.Files{CA: filepath.Join(dir, "c.crt"), Cert: filepath.Join(dir, "c.crt"), Key: filepath.Join(dir, "c.key")}
	write(t, files.Cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, files.Key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	return files
}

// TestEverythingIsEverything finds an option that a new flag brings and everything lacks.
func TestEverythingIsEverything(t *testing.T) {
	for _, f := range server.Flags() {
		name := f.Names()[0]
		if name != config.FileFlag && name != "cluster-dns" && name != "token-file" && !strings.Contains(everything, "\n"+name+": ") {
			t.Errorf("the option %s is not set", name)
		}
	}
}

type wrong struct{ args, want string }

// wrongValues are command lines and what is said of them; want is empty when the value is right.
var wrongValues = []wrong{
	{"--data-dir=", "--data-dir: needs a path"},
	{"--token=a b", "--token: may contain visible ASCII characters only"},
	{"--node-name=Upper", `--node-name: "Upper" is not a DNS name of at most 63 lower-case letters, digits, - and .`},
	{"--node-name=a.b-c", ""},
	{"--node-name=" + strings.Repeat("a", 64), "is not a DNS name of at most 63"},
	{"--node-name=a_b", "is not a DNS name"},
	{"--node-ip=300.1.1.1", `--node-ip: "300.1.1.1" is not an IP address`},
	{"--node-ip=fe80::1%eth0", "is not an IP address"},
	{"--node-ip=127.0.0.1", "--node-ip: 127.0.0.1 is not an address by which others can reach the node"},
	{"--node-ip=0.0.0.0", "0.0.0.0 is not an address by which"},
	{"--node-ip=1.1.1.1,1.1.1.2", "--node-ip: takes one address, or one IPv4 and one IPv6 address"},
	{"--node-ip=10.42.1.1", "--node-ip: 10.42.1.1 is inside 10.42.0.0/16, which belongs to the cluster"},
	{"--node-label=a", `--node-label: "a" does not have the form key=value`},
	{"--node-label=-a=b", `the key "-a" is no label key`},
	{"--node-label=a=b c", `the value "b c" is no label value`},
	{"--node-label=a=b,a=c", `a is given two values, "b" and "c"`},
	{"--node-label=kubernetes.io/role=x", `--node-label: "kubernetes.io/role=x": a node may not give itself this label`},
	{"--node-label=node-role.kubernetes.io/worker=", "a node may not give itself this label"},
	{"--node-label=a.k8s.io/b=c", "a node may not give itself this label"},
	{"--node-label=topology.kubernetes.io/zone=a,node.kubernetes.io/x=,a.node.kubernetes.io/x=,notkubernetes.io/x=", ""},
	{"--node-taint=a=b c:NoExecute", `--node-taint: "a=b c:NoExecute": the value "b c" is no label value`},
	{"--node-taint=a=b:NoExecute:c", `the effect "NoExecute:c" is not one of`},
	{"--node-taint=node-role.kubernetes.io/control-plane:NoSchedule", ""},
	{"--node-taint=a=b", `--node-taint: "a=b" does not have the form key=value:effect`},
	{"--node-taint=a=b:Never", `the effect "Never" is not one of NoSchedule, PreferNoSchedule, NoExecute`},
	{"--node-taint=_=b:NoExecute", `the key "_" is no label key`},
	{"--node-taint=a=b:NoExecute,a=c:NoExecute", "a is given twice with the effect NoExecute"},
	{"--bind-address=eth0", `--bind-address: "eth0" is not an IP address`},
	{"--bind-address=", `--bind-address: "" is not one address to listen on`},
	{"--bind-address=1.1.1.1,1.1.1.2", "is not one address to listen on"},
	{"--bind-address=224.0.0.1", "is not one address to listen on"},
	{"--bind-address=::", ""},
	{"--bind-address=127.0.0.1", "--bind-address: pods cannot reach the API server at 127.0.0.1: give another address"},
	{"--bind-address=::1", "--bind-address: pods cannot reach the API server at ::1"},
	{"--bind-address=127.0.0.1 --advertise-address=192.168.7.5", ""},
	{"--bind-address=127.0.0.1 --disable-agent", ""},
	{"--https-listen-port=0", `--https-listen-port: "0" is not a port from 1 to 65535`},
	{"--https-listen-port=https", "is not a port from 1 to 65535"},
	{"--https-listen-port=70000", "is not a port from 1 to 65535"},
	{"--https-listen-port=30443", "--https-listen-port: 30443 is inside the service-node-port-range 30000-32767"},
	{"--advertise-address=127.0.0.1", `--advertise-address: "127.0.0.1" is not one address by which others can reach the API server`},
	{"--advertise-address=10.43.0.7", "--advertise-address: 10.43.0.7 is inside 10.43.0.0/16"},
	{"--advertise-address=fd00::1", "--advertise-address: fd00::1 is not of the first service-cidr's family IPv4"},
	{"--tls-san=a_b", `--tls-san: "a_b" is neither an IP address nor a DNS name`},
	{"--cluster-cidr=10.42.0.0", `--cluster-cidr: "10.42.0.0" is not a network such as 10.42.0.0/16`},
	{"--cluster-cidr=10.42.0.0/33", "is not a network"},
	{"--cluster-cidr=10.42.7.0/16", "--cluster-cidr: 10.42.7.0/16 has bits set behind its prefix: did you mean 10.42.0.0/16"},
	{"--cluster-cidr=", "--cluster-cidr: needs a network"},
	{"--cluster-cidr=10.42.0.0/16,10.44.0.0/16", "--cluster-cidr: takes one network, or one IPv4 and one IPv6 network"},
	{"--cluster-cidr=10.0.0.0/8", "--service-cidr: 10.43.0.0/16 overlaps the cluster-cidr 10.0.0.0/8"},
	{"--cluster-cidr=10.42.0.0/25", "--cluster-cidr: 10.42.0.0/25: the prefix of an IPv4 network has to be from /8 to /24, since each node gets a /24 of it"},
	{"--cluster-cidr=10.42.0.0/25 --kube-controller-manager-arg=node-cidr-mask-size=26", ""},
	{"--cluster-cidr=fd42::/56", "--service-cidr: has IPv4, but cluster-cidr has IPv6: they need the same families in the same order"},
	{"--cluster-cidr=fd42::/56,10.42.0.0/16 --service-cidr=10.43.0.0/16,fd43::/112", "has IPv4 and IPv6, but cluster-cidr has IPv6 and IPv4"},
	{"--service-cidr=10.43.0.0/29", "--service-cidr: 10.43.0.0/29: the prefix of an IPv4 network has to be from /12 to /28"},
	{"--cluster-cidr=fd42::/56 --service-cidr=fd43::/64", "--service-cidr: fd43::/64: the prefix of an IPv6 network has to be from /108 to /124"},
	{"--cluster-cidr=fd42::/56 --service-cidr=fd43::/112", ""},
	{"--node-external-ip=127.0.0.1", "--node-external-ip: 127.0.0.1 is not an address by which others can reach the node"},
	{"--node-external-ip=203.0.113.5,203.0.113.6", "--node-external-ip: takes one address, or one IPv4 and one IPv6 address"},
	{"--flannel-backend=ipsec", `--flannel-backend: "ipsec" is not one of vxlan, host-gw, wireguard-native, none`},
	{"--flannel-backend=", `--flannel-backend: "" is not one of vxlan, host-gw, wireguard-native, none`},
	{"--service-node-port-range=30000", `--service-node-port-range: "30000" is not a range of ports such as 30000-32767`},
	{"--service-node-port-range=200-100", "is not a range of ports"},
	{"--service-node-port-range=1-65536", "is not a range of ports"},
	{"--cluster-dns=10.44.0.10", "--cluster-dns: 10.44.0.10 is not inside the service-cidr 10.43.0.0/16"},
	{"--cluster-dns=10.43.0.1", "--cluster-dns: 10.43.0.1 is reserved"},
	{"--cluster-dns=10.43.0.9,10.43.0.8", "--cluster-dns: takes one address, or one IPv4 and one IPv6 address"},
	{"--cluster-dns=10.43.0.53", ""},
	{"--cluster-domain=a..b", `--cluster-domain: "a..b" is not a DNS domain`},
	{"--resolv-conf=/does/not/exist", "--resolv-conf: /does/not/exist does not exist"},
	{"--write-kubeconfig=", "--write-kubeconfig: needs a path"},
	{"--write-kubeconfig-mode=rw", `--write-kubeconfig-mode: "rw" is not an octal file mode such as 0600`},
	{"--write-kubeconfig-mode=01777", "is not an octal file mode"},
	{"--disable=traefik", `--disable: there is no add-on "traefik", only dns`},
	{"--kube-apiserver-arg=v", `--kube-apiserver-arg: "v" does not have the form key=value`},
	{"--kubelet-arg==1", `--kubelet-arg: "=1" does not have the form key=value`},
	{"--kube-scheduler-config=/", "--kube-scheduler-config: / is not a file"},
	{"--proxy-mode=ipvs", `--proxy-mode: "ipvs" is not one of nftables, iptables`},
	{"--pod-manifest-url=file:///etc/passwd", "is not an http or https URL"},
	{"--snapshotter=zfs", `--snapshotter: "zfs" is not one of overlayfs, native`},
	{"--log-format=xml", `--log-format: "xml" is not one of text, json`},
	{"--log-format=", `--log-format: "" is not one of text, json`},
}

func TestWrongValues(t *testing.T) {
	for _, row := range slices.Concat(wrongValues, wrongSnapshots) {
		t.Run(row.args, func(t *testing.T) {
			_, err := parse(t, split(row.args)...)
			switch {
			case row.want == "" && err != nil:
				t.Errorf("unexpected: %v", err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("got %v, want %s", err, row.want)
			case row.want != "" && strings.Contains(err.Error(), "\n"):
				t.Errorf("more than one problem:\n%v", err)
			}
		})
	}
}

// split divides a command line before each flag, so that values may contain spaces.
func split(line string) []string {
	args := strings.Split(line, " --")
	for i := 1; i < len(args); i++ {
		args[i] = "--" + args[i]
	}
	return args
}
