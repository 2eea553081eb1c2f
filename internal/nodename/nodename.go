// Package nodename remembers the name that this machine's node has, so that a later change of the host's name changes
// nothing.
//
// It promises that the name is found again when its file was lost or emptied, as by a power cut: the node's certificates
// have it too.
package nodename

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"strings"

	"github.com/clusterd/clusterd/internal/atomicfile"
	"github.com/clusterd/clusterd/internal/datadir"
)

// Read is the name of the node whose data are in the directory; empty if there is none.
func Read(dir datadir.Dir) string {
	if name := written(dir); name != "" {
		return name
	}
	for _, file := range dir.NodeCertificates() {
		if name := certified(file); name != "" {
			return name
		}
	}
	return ""
}

// Keep writes the name down. The directory has to be prepared.
func Keep(dir datadir.Dir, name string) error {
	if written(dir) == name {
		return nil
	}
	return atomicfile.WriteDurable(dir.NodeName(), 0o644, []byte(name+"\n"))
}

func written(dir datadir.Dir) string {
	data, err := os.ReadFile(dir.NodeName())
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}

// certified is the node that a certificate is for.
func certified(file string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return ""
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return ""
	}
	name, ok := strings.CutPrefix(cert.Subject.CommonName, "system:node:")
	if !ok {
		return ""
	}
	return name
}
