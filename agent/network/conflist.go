package network

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/clusterd/clusterd/internal/atomicfile"
)

// conflistName sorts before what others would put there; the runtime takes the first.
const conflistName = "10-clusterd.conflist"

type conflist struct {
	Version string     `json:"cniVersion"`
	Name    string     `json:"name"`
	Plugins []endpoint `json:"plugins"`
}

// endpoint is the configuration that the CNI endpoint gets on its standard input.
type endpoint struct {
	Type         string          `json:"type"`
	Socket       string          `json:"socket"`
	Capabilities map[string]bool `json:"capabilities"`
}

// writeConflist tells the runtime that there is a network.
func writeConflist(dir, socket string) error {
	data, err := json.MarshalIndent(conflist{
		Version: cniVersion, Name: "clusterd",
		Plugins: []endpoint{{Type: EndpointName, Socket: socket, Capabilities: map[string]bool{"portMappings": true}}},
	}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the network configuration: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the network configuration directory: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, conflistName), 0o644, append(data, '\n')); err != nil {
		return fmt.Errorf("write the network configuration: %w", err)
	}
	return nil
}
