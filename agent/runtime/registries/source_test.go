package registries_test

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/clusterd/clusterd/agent/runtime/registries"
	"github.com/clusterd/clusterd/agent/runtime/registries/registrytest"
)

// registry is a served registry with the image team/app:v1.
type registry struct {
	*registrytest.Registry
	server *httptest.Server
	host   string
	image  ocispec.Descriptor
}

// serve starts a registry that has the image under a repository's name.
func serve(t *testing.T, repository string, secure bool, set func(*registrytest.Registry)) registry {
	t.Helper()
	r := registrytest.New()
	if set != nil {
		set(r)
	}
	image, err := r.Add(repository, "v1", ocispec.Image{}, []byte("layer"))
	if err != nil {
		t.Fatal(err)
	}
	start := httptest.NewServer
	if secure {
		start = httptest.NewTLSServer
	}
	server := start(r)
	t.Cleanup(server.Close)
	return registry{Registry: r, server: server, host: server.Listener.Addr().String(), image: image}
}

// pull resolves an image and reads its manifest and layer.
func pull(ctx context.Context, file, ref string, auth registries.Auth) (ocispec.Descriptor, error) {
	parsed, err := registries.Parse([]byte(file))
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	source, err := parsed.Source(ref, auth)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	name, desc, err := source.Resolve(ctx)
	if err != nil {
		return desc, err
	}
	if name != ref {
		return desc, fmt.Errorf("the image is called %s now", name)
	}
	fetcher, err := source.Fetcher(ctx, name)
	if err != nil {
		return desc, err
	}
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: layerDigest, Size: int64(len("layer"))}
	for _, part := range []ocispec.Descriptor{desc, layer} {
		body, err := fetcher.Fetch(ctx, part)
		if err != nil {
			return desc, err
		}
		data, err := io.ReadAll(body)
		if err != nil {
			return desc, err
		}
		if part.Digest.Algorithm().FromBytes(data) != part.Digest {
			return desc, fmt.Errorf("part %s arrived as %q", part.Digest, data)
		}
	}
	return desc, nil
}

// layerDigest is of "layer".
const layerDigest = "sha256:dac1d7cfa95021764849fd102524e141488c5e3a90f861dbb5a12d9ac8584f85"

func withPassword(r *registrytest.Registry) { r.Username, r.Password = "me", "secret" }

func withToken(r *registrytest.Registry) { withPassword(r); r.Token = "granted" }

func TestPullFromRegistryItself(t *testing.T) {
	for name, row := range map[string]struct {
		set     func(*registrytest.Registry)
		configs string
		pull    registries.Auth
		fails   bool
	}{
		"open":               {},
		"password in file":   {set: withPassword, configs: `configs: {"HOST": {auth: {username: me, password: secret}}}`},
		"auth in file":       {set: withPassword, configs: `configs: {"HOST": {auth: {auth: ` + base64.StdEncoding.EncodeToString([]byte("me:secret")) + `}}}`},
		"any host":           {set: withPassword, configs: `configs: {"*": {auth: {username: me, password: secret}}}`},
		"token":              {set: withToken, configs: `configs: {"HOST": {auth: {username: me, password: secret}}}`},
		"pull's own":         {set: withPassword, pull: registries.Auth{Username: "me", Password: "secret"}},
		"pull's own wins":    {set: withPassword, configs: `configs: {"HOST": {auth: {username: me, password: wrong}}}`, pull: registries.Auth{Username: "me", Password: "secret"}},
		"no password":        {set: withPassword, fails: true},
		"wrong password":     {set: withPassword, configs: `configs: {"HOST": {auth: {username: me, password: wrong}}}`, fails: true},
		"wrong for a token":  {set: withToken, configs: `configs: {"HOST": {auth: {username: me, password: wrong}}}`, fails: true},
		"of another machine": {set: withPassword, configs: `configs: {"other.example": {auth: {username: me, password: secret}}}`, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := serve(t, "team/app", false, row.set)
			desc, err := pull(t.Context(), strings.ReplaceAll(row.configs, "HOST", r.host), r.host+"/team/app:v1", row.pull)
			if row.fails {
				if err == nil {
					t.Error("the pull succeeded")
				} else if strings.Contains(err.Error(), "secret") {
					t.Errorf("error %v has the password", err)
				}
				return
			}
			if err != nil || desc.Digest != r.image.Digest {
				t.Errorf("got %s, %v", desc.Digest, err)
			}
		})
	}
}

func TestPullFromMirror(t *testing.T) {
	const ref = "127.0.0.1:1/team/app:v1"
	t.Run("of the registry", func(t *testing.T) {
		r := serve(t, "team/app", false, nil)
		if _, err := pull(t.Context(), `mirrors: {"127.0.0.1:1": {endpoint: ["http://`+r.host+`"]}}`, ref, registries.Auth{}); err != nil {
			t.Error(err)
		}
		if ns := r.Requests()[0].Query().Get("ns"); ns != "127.0.0.1:1" {
			t.Errorf("the mirror was told the registry %q", ns)
		}
	})
	t.Run("of all", func(t *testing.T) {
		r := serve(t, "team/app", false, nil)
		if _, err := pull(t.Context(), `mirrors: {"*": {endpoint: ["http://`+r.host+`"]}}`, ref, registries.Auth{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("with a path", func(t *testing.T) {
		r := serve(t, "team/app", false, func(r *registrytest.Registry) { r.Prefix = "/proxy" })
		if _, err := pull(t.Context(), `mirrors: {"*": {endpoint: ["http://`+r.host+`/proxy/v2"]}}`, ref, registries.Auth{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("with a rewrite", func(t *testing.T) {
		r := serve(t, "copies/team-app", false, withToken)
		file := `{mirrors: {"*": {endpoint: ["http://` + r.host + `"], rewrite: {"^team/(.*)": "copies/team-$1"}}}, configs: {"` + r.host + `": {auth: {username: me, password: secret}}}}`
		if _, err := pull(t.Context(), file, ref, registries.Auth{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("with the pull's credentials", func(t *testing.T) {
		r := serve(t, "team/app", false, withPassword)
		auth := registries.Auth{Username: "me", Password: "secret"}
		if _, err := pull(t.Context(), `mirrors: {"*": {endpoint: ["http://`+r.host+`"]}}`, ref, auth); err != nil {
			t.Error(err)
		}
	})
}

func TestMirrorsAreTriedInOrder(t *testing.T) {
	empty, broken, good := serve(t, "other", false, nil), serve(t, "team/app", false, nil), serve(t, "team/app", false, nil)
	broken.Lose()
	file := fmt.Sprintf(`mirrors: {"127.0.0.1:1": {endpoint: ["http://%s", "http://%s", "http://%s"]}}`, empty.host, broken.host, good.host)
	if _, err := pull(t.Context(), file, "127.0.0.1:1/team/app:v1", registries.Auth{}); err != nil {
		t.Error(err)
	}
	if len(empty.Requests()) == 0 || len(broken.Requests()) == 0 {
		t.Error("a mirror was left out")
	}
}

func TestRewriteDoesNotHoldForTheRegistry(t *testing.T) {
	mirror, origin := serve(t, "other", false, nil), serve(t, "team/app", false, nil)
	file := fmt.Sprintf(`mirrors: {"%s": {endpoint: ["http://%s"], rewrite: {"team/app": "elsewhere"}}}`, origin.host, mirror.host)
	if _, err := pull(t.Context(), file, origin.host+"/team/app:v1", registries.Auth{}); err != nil {
		t.Error(err)
	}
}

func TestErrorNamesAllPlaces(t *testing.T) {
	one, two := serve(t, "other", false, nil), serve(t, "other", false, nil)
	file := fmt.Sprintf(`mirrors: {"%s": {endpoint: ["http://%s"]}}`, one.host, two.host)
	_, err := pull(t.Context(), file, one.host+"/team/app:v1", registries.Auth{})
	if err == nil || !strings.Contains(err.Error(), one.host) || !strings.Contains(err.Error(), two.host) {
		t.Errorf("error is %v", err)
	}
}

func TestTLS(t *testing.T) {
	r := serve(t, "team/app", true, nil)
	ca := filepath.Join(t.TempDir(), "ca.crt")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.server.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, row := range map[string]struct {
		tls   string
		fails bool
	}{
		"unknown CA": {tls: "{}", fails: true},
		"CA file":    {tls: "{ca_file: " + ca + "}"},
		"unverified": {tls: "{insecure_skip_verify: true}"},
		"no CA file": {tls: "{ca_file: /nowhere/ca.crt}", fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			file := fmt.Sprintf(`{mirrors: {"127.0.0.1:1": {endpoint: ["https://%s"]}}, configs: {"%s": {tls: %s}}}`, r.host, r.host, row.tls)
			_, err := pull(t.Context(), file, "127.0.0.1:1/team/app:v1", registries.Auth{})
			if (err != nil) != row.fails {
				t.Errorf("error is %v", err)
			}
		})
	}
}
