package kubeconfig_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/clusterd/clusterd/internal/kubeconfig"
)

func valid() kubeconfig.Config {
	return kubeconfig.Config{
		Server: "https://127.0.0.1:6443",
		CA:     []byte("ca pem\n"), Cert: []byte("cert pem\n"), Key: []byte("key pem\n"),
	}
}

// TestClientsUnderstandIt reads what was written the way kubectl does.
func TestClientsUnderstandIt(t *testing.T) {
	t.Parallel()
	v6 := valid()
	v6.Server = "https://[fd00::1]:6443"
	for name, c := range map[string]kubeconfig.Config{"usual": valid(), "IPv6": v6} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "kubeconfig.yaml")
			if err := kubeconfig.Write(path, 0o600, c); err != nil {
				t.Fatal(err)
			}
			loaded, err := clientcmd.LoadFromFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if loaded.CurrentContext != "default" {
				t.Errorf("context %q, want the name that every kubeconfig has", loaded.CurrentContext)
			}
			got, err := clientcmd.NewDefaultClientConfig(*loaded, nil).ClientConfig()
			if err != nil {
				t.Fatal(err)
			}
			if got.Host != c.Server || string(got.CAData) != string(c.CA) || string(got.CertData) != string(c.Cert) || string(got.KeyData) != string(c.Key) {
				t.Errorf("got %s with other data than written", got.Host)
			}
		})
	}
}

func TestModeIsExact(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubeconfig.yaml")
	for _, mode := range []fs.FileMode{0o600, 0o666, 0o640} {
		if err := kubeconfig.Write(path, mode, valid()); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode() != mode {
			t.Errorf("mode %v, want %s: %v", info.Mode(), mode, err)
		}
	}
}

// TestUnchangedFileIsLeftAlone tells by a time of change long ago.
func TestUnchangedFileIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubeconfig.yaml")
	if err := kubeconfig.Write(path, 0o600, valid()); err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1e9, 0)
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	other := valid()
	other.Server = "https://192.0.2.1:6443"
	for _, row := range []struct {
		config    kubeconfig.Config
		untouched bool
	}{{valid(), true}, {other, false}} {
		if err := kubeconfig.Write(path, 0o600, row.config); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.ModTime().Equal(old) != row.untouched {
			t.Errorf("%s: untouched is not %t (%v)", row.config.Server, row.untouched, err)
		}
	}
}

func TestWrongConfig(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(c *kubeconfig.Config){
		"no server URL":         func(c *kubeconfig.Config) { c.Server = "" },
		"no CA certificate":     func(c *kubeconfig.Config) { c.CA = nil },
		"no client key":         func(c *kubeconfig.Config) { c.Key = nil },
		"no client certificate": func(c *kubeconfig.Config) { c.Cert = nil },
	} {
		c, path := valid(), filepath.Join(t.TempDir(), "kubeconfig.yaml")
		change(&c)
		err := kubeconfig.Write(path, 0o600, c)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v, want %q and the file", err, want)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s: wrote a file", want)
		}
	}
}

func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "no", "kubeconfig.yaml")
	if err := kubeconfig.Write(path, 0o600, valid()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want an error that names the file", err)
	}
}
