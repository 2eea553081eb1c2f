package snapshot_test

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"

	"github.com/clusterd/clusterd/internal/snapshot"
)

const (
	accessKey = "AKIDEXAMPLE"
	secretKey = "wJalrXUtnFEMI/K7MDENG"
)

// signed lets only requests pass that are signed by AWS's version 4 with the keys of the tests.
func signed(t *testing.T, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := checkSignature(r); err != nil {
			t.Logf("%s %s: %v", r.Method, r.URL, err)
			w.Header().Set("Content-Type", "application/xml")
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, "<Error><Code>SignatureDoesNotMatch</Code><Message>the signature does not match</Message></Error>")
			return
		}
		next.ServeHTTP(w, r)
	})
}

func checkSignature(r *http.Request) error {
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return errors.New("not signed")
	}
	part := map[string]string{}
	for field := range strings.SplitSeq(rest, ",") {
		key, value, _ := strings.Cut(strings.TrimSpace(field), "=")
		part[key] = value
	}
	who, scope, _ := strings.Cut(part["Credential"], "/")
	if who != accessKey {
		return fmt.Errorf("by %q", who)
	}
	canonical := []string{r.Method, (&url.URL{Path: r.URL.Path}).EscapedPath(), strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")}
	for name := range strings.SplitSeq(part["SignedHeaders"], ";") {
		value := r.Header.Get(name)
		if name == "host" {
			value = r.Host
		}
		if name == "content-length" {
			value = fmt.Sprint(r.ContentLength)
		}
		canonical = append(canonical, name+":"+strings.TrimSpace(value))
	}
	canonical = append(canonical, "", part["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256"))
	hash := sha256.Sum256([]byte(strings.Join(canonical, "\n")))
	key := []byte("AWS4" + secretKey)
	for step := range strings.SplitSeq(scope, "/") { // date, region, service, aws4_request
		key = mac(key, step)
	}
	want := mac(key, strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), scope, hex.EncodeToString(hash[:])}, "\n"))
	if part["Signature"] != hex.EncodeToString(want) {
		return errors.New("another signature")
	}
	return nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

// objectStore is a server that speaks S3 and has the bucket "backups", and how to reach it.
func objectStore(t *testing.T, secure bool) snapshot.BucketConfig {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(signed(t, gofakes3.New(backend).Server()))
	t.Cleanup(server.Close)
	c := snapshot.BucketConfig{Name: "backups", Region: "eu-test-1", Folder: "cluster/one", AccessKey: accessKey, SecretKey: secretKey, Insecure: !secure}
	if secure {
		server.StartTLS()
		c.EndpointCA = filepath.Join(t.TempDir(), "ca.pem")
		write(t, c.EndpointCA, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	} else {
		server.Start()
	}
	c.Endpoint = server.Listener.Addr().String()
	return c
}

// noise is a text that cannot be compressed.
func noise(length int) string {
	var b strings.Builder
	for b.Len() < length {
		b.WriteString(rand.Text())
	}
	return b.String()
}

func bucket(t *testing.T, c snapshot.BucketConfig) *snapshot.Bucket {
	t.Helper()
	b, err := snapshot.NewBucket(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var _ snapshot.Place = &snapshot.Bucket{}

func TestBucket(t *testing.T) {
	for name, secure := range map[string]bool{"HTTPS": true, "HTTP": false} {
		t.Run(name, func(t *testing.T) {
			i := install(t)
			i.put(t, "/noise", noise(100_000)) // so that a snapshot is much longer than its head
			want := i.state(t)
			c := objectStore(t, secure)
			b := bucket(t, c)
			var names []string
			for n := range 3 {
				made := i.save(t, fmt.Sprintf("scheduled-node-2026120%dT000000Z", n+1))
				names = append(names, made.Name)
				up, err := b.Upload(t.Context(), i.folder(), made.Name)
				if err != nil {
					t.Fatal(err)
				}
				made.Location = "s3://backups/cluster/one/" + made.Name + ".tar.zst"
				if up != made {
					t.Errorf("uploaded %+v, want %+v", up, made)
				}
				if d := b.Describe(t.Context(), made.Name); d != made {
					t.Errorf("there is %+v, want %+v", d, made)
				}
			}
			c.Folder = ""
			if got, err := bucket(t, c).Names(t.Context()); err != nil || got != nil {
				t.Errorf("outside of the folder there is %q, %v", got, err)
			}
			if gone, err := snapshot.Prune(t.Context(), b, "scheduled", "node", 2); err != nil || !slices.Equal(gone, names[:1]) {
				t.Errorf("removed %q, %v", gone, err)
			}
			if got, err := b.Names(t.Context()); err != nil || !slices.Equal(got, names[1:]) {
				t.Errorf("there is %q, %v; want %q", got, err, names[1:])
			}
			to := snapshot.Folder(t.TempDir())
			if err := b.Download(t.Context(), names[2], to); err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(to.Path(names[2])); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the archive has mode %v, %v", info.Mode(), err)
			}
			other := blank(t, t.TempDir())
			other.restore(t, to.Path(names[2]))
			if got := other.state(t); len(got) != len(want) {
				t.Errorf("restored %q, want %q", got, want)
			}
			if err := b.Delete(t.Context(), names[2]); err != nil {
				t.Error(err)
			}
			if err := b.Delete(t.Context(), names[2]); !errors.Is(err, snapshot.ErrNotFound) {
				t.Errorf("deleted twice: %v", err)
			}
			if err := b.Download(t.Context(), names[2], to); !errors.Is(err, snapshot.ErrNotFound) {
				t.Errorf("downloaded what is not there: %v", err)
			}
			if d := b.Describe(t.Context(), names[2]); d.Fault == "" {
				t.Errorf("what is not there is %+v", d)
			}
		})
	}
}

// A snapshot that is sent in parts arrives as it is.
func TestBucketInParts(t *testing.T) {
	b := bucket(t, objectStore(t, true))
	from, to := snapshot.Folder(t.TempDir()), snapshot.Folder(t.TempDir())
	var text strings.Builder
	for n := 0; text.Len() < 40<<20; n++ {
		fmt.Fprintln(&text, n)
	}
	write(t, from.Path("large"), text.String())
	if _, err := b.Upload(t.Context(), from, "large"); err != nil {
		t.Fatal(err)
	}
	if err := b.Download(t.Context(), "large", to); err != nil {
		t.Fatal(err)
	}
	if read(t, to.Path("large")) != text.String() {
		t.Error("another one came back")
	}
}

// What is wrong with a bucket is one line that names it and not the secret.
func TestBucketFaults(t *testing.T) {
	i := install(t)
	i.save(t, "one")
	good := objectStore(t, true)
	for name, change := range map[string]func(*snapshot.BucketConfig){
		"signature": func(c *snapshot.BucketConfig) { c.SecretKey = "another-secret" },
		"bucket":    func(c *snapshot.BucketConfig) { c.Name = "nothing" },
		"authority": func(c *snapshot.BucketConfig) { c.EndpointCA = "" },
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			change(&c)
			b := bucket(t, c)
			_, err := b.Upload(t.Context(), i.folder(), "one")
			_, listErr := b.Names(t.Context())
			for _, err := range []error{err, listErr} {
				oneLine(t, err, c.Name, c.Endpoint)
				if err != nil && strings.Contains(err.Error(), c.SecretKey) {
					t.Errorf("%q shows the secret", err)
				}
			}
		})
	}
	believing := good
	believing.EndpointCA, believing.SkipSSLVerify = "", true
	if _, err := bucket(t, believing).Upload(t.Context(), i.folder(), "one"); err != nil {
		t.Error(err)
	}
	broken := good
	broken.EndpointCA = i.folder().Path("one")
	if _, err := snapshot.NewBucket(broken); err == nil || !strings.Contains(err.Error(), "holds no certificate") {
		t.Errorf("an archive is an authority: %v", err)
	}
}
