package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/clusterd/clusterd/agent/network/ipam"
)

// maxIfName is the longest interface name the kernel takes.
const maxIfName = 15

// cniVersion is the version of the CNI protocol that is spoken here. From 1.1.0
// on the runtime would execute STATUS at every look at its own status.
const cniVersion = "1.0.0"

// Error codes of the CNI specification.
const (
	codeIncompatible = 1
	codeEnvironment  = 4
	codeDecode       = 6
	codeTryLater     = 11
	codeOwn          = 100 // the first code that is a plugin's own
)

// cniError is what the runtime gets in place of a result.
type cniError struct {
	Version string `json:"cniVersion"`
	Code    int    `json:"code"`
	Msg     string `json:"msg"`
}

func (e *cniError) Error() string { return e.Msg }

func failure(code int, format string, args ...any) *cniError {
	return &cniError{Version: cniVersion, Code: code, Msg: fmt.Sprintf(format, args...)}
}

// asFailure turns any error into one for the runtime.
func asFailure(err error) *cniError {
	var known *cniError
	if errors.As(err, &known) {
		return known
	}
	return failure(codeOwn, "%v", err)
}

// request is one call of the CNI endpoint.
type request struct {
	command string
	key     ipam.Key
	netns   string
	ports   []ipam.Port
	valid   []ipam.Key // of GC: what is still in use
}

// netConf is the part of the network configuration that is used.
type netConf struct {
	CNIVersion    string `json:"cniVersion"`
	RuntimeConfig struct {
		PortMappings []portMapping `json:"portMappings"`
	} `json:"runtimeConfig"`
	ValidAttachments []ipam.Key `json:"cni.dev/valid-attachments"`
}

// portMapping is one entry of the capability portMappings, as the CNI
// conventions name it.
type portMapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP"`
}

// The specification's rule for container ids; it also keeps them usable as file names.
var containerID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,199}$`)

// parseRequest reads what the endpoint sent: its CNI_ variables, each ended by
// NUL, one NUL more, and its standard input.
func parseRequest(data []byte) (request, error) {
	head, conf, is := strings.Cut(string(data), "\x00\x00")
	if !is {
		return request{}, failure(codeDecode, "the request of the CNI endpoint is cut off after %d bytes", len(data))
	}
	env := map[string]string{}
	for _, kv := range strings.Split(head, "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	r := request{
		command: env["CNI_COMMAND"], netns: env["CNI_NETNS"],
		key: ipam.Key{ContainerID: env["CNI_CONTAINERID"], IfName: env["CNI_IFNAME"]},
	}
	if err := r.readConf(conf); err != nil {
		return request{}, err
	}
	return r, r.validate()
}

func (r *request) readConf(text string) error {
	var c netConf
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return failure(codeDecode, "decode the network configuration: %v", err)
	}
	if !slices.Contains([]string{"1.0.0", "1.1.0"}, c.CNIVersion) {
		return failure(codeIncompatible, "CNI version %q is not supported, want %s", c.CNIVersion, cniVersion)
	}
	r.valid = c.ValidAttachments
	for _, m := range c.RuntimeConfig.PortMappings {
		p, err := m.port()
		if err != nil {
			return err
		}
		if p.HostPort != 0 {
			r.ports = append(r.ports, p)
		}
	}
	return nil
}

// port checks m. A host port of 0 means that there is nothing to map.
func (m portMapping) port() (ipam.Port, error) {
	p := ipam.Port{Protocol: strings.ToLower(m.Protocol), HostPort: uint16(m.HostPort), ContainerPort: uint16(m.ContainerPort)}
	if p.Protocol == "" {
		p.Protocol = "tcp"
	}
	if _, is := protocols[p.Protocol]; !is {
		return p, failure(codeDecode, "port mapping %d: unknown protocol %q", m.HostPort, m.Protocol)
	}
	if m.HostPort < 0 || m.HostPort > 65535 || m.ContainerPort < 1 || m.ContainerPort > 65535 {
		return p, failure(codeDecode, "port mapping %d to %d: not a port number", m.HostPort, m.ContainerPort)
	}
	if m.HostIP == "" {
		return p, nil
	}
	ip, err := netip.ParseAddr(m.HostIP)
	if err != nil {
		return p, failure(codeDecode, "port mapping %d: host address: %v", m.HostPort, err)
	}
	p.HostIP = ip.Unmap()
	return p, nil
}

func (r request) validate() error {
	switch r.command {
	case "GC", "STATUS":
		return nil
	case "ADD", "CHECK":
		if r.netns == "" {
			return failure(codeEnvironment, "CNI_NETNS is not set")
		}
	case "DEL":
	default:
		return failure(codeEnvironment, "unknown CNI_COMMAND %q", r.command)
	}
	if !containerID.MatchString(r.key.ContainerID) {
		return failure(codeEnvironment, "CNI_CONTAINERID %q is not a container id", r.key.ContainerID)
	}
	if n := r.key.IfName; n == "" || len(n) > maxIfName || n == "." || n == ".." || strings.ContainsAny(n, "/:@ \t\n") {
		return failure(codeEnvironment, "CNI_IFNAME %q is not an interface name", n)
	}
	return nil
}
