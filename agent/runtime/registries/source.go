package registries

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/transfer"
	"github.com/containerd/containerd/v2/pkg/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// defaultPath is where the API of a registry begins.
const defaultPath = "/v2"

// Source is one image at all the places where it can be had. It implements the
// interfaces that containerd's transfer service pulls from.
type Source struct {
	ref     string
	origins []origin // tried in order, never empty
}

var (
	_ transfer.ImageFetcher              = (*Source)(nil)
	_ transfer.ImageResolverOptionSetter = (*Source)(nil)
)

// origin is one place: the image's name there and the resolver that asks there.
type origin struct {
	name     string // for errors: the endpoint's host
	ref      string
	resolver remotes.Resolver
}

// Source returns the source of the image ref, a full reference. The credentials
// of a pull (from a pod's imagePullSecrets; may be empty) are for the registry
// itself and win there; a mirror gets them only if the file has none for it.
func (r *Registries) Source(ref string, pull Auth) (*Source, error) {
	spec, err := reference.Parse(ref)
	if err != nil {
		return nil, fmt.Errorf("parse image reference %s: %w", ref, err)
	}
	registry, repository := spec.Hostname(), strings.TrimPrefix(spec.Locator, spec.Hostname()+"/")
	mirror := r.mirror(registry)
	s := &Source{ref: ref}
	for _, endpoint := range mirror.Endpoints {
		host := r.config(endpoint.Host)
		if host.Auth.empty() {
			host.Auth = pull
		}
		renamed := reference.Spec{Locator: registry + "/" + mirror.Rewrites.apply(repository), Object: spec.Object}
		if err := s.add(renamed.String(), endpoint, host, false); err != nil {
			return nil, err
		}
	}
	endpoint, err := registryEndpoint(registry)
	if err != nil {
		return nil, err
	}
	host := r.config(registry, endpoint.Host)
	if !pull.empty() {
		host.Auth = pull
	}
	return s, s.add(ref, endpoint, host, isLocal(registry))
}

// registryEndpoint is where a registry's own API is.
func registryEndpoint(registry string) (Endpoint, error) {
	host, err := docker.DefaultHost(registry)
	if err != nil {
		return Endpoint{}, fmt.Errorf("locate registry %s: %w", registry, err)
	}
	return Endpoint{Scheme: "https", Host: host, Path: defaultPath}, nil
}

// isLocal reports whether a registry is on this machine and may speak plain
// HTTP, as containerd and docker allow.
func isLocal(registry string) bool {
	_, port, err := net.SplitHostPort(registry)
	return docker.IsLocalhost(registry) && err == nil && port != "443"
}

// add appends an origin. With fallback, plain HTTP is spoken where TLS is not,
// and certificates are not verified.
func (s *Source) add(ref string, endpoint Endpoint, host Host, fallback bool) error {
	config, err := host.TLS.config()
	if err != nil {
		return fmt.Errorf("TLS files for registry %s: %w", endpoint.Host, err)
	}
	config.InsecureSkipVerify = config.InsecureSkipVerify || fallback
	client := &http.Client{Transport: docker.DefaultHTTPTransport(config)}
	if fallback {
		client.Transport = docker.NewHTTPFallback(client.Transport)
	}
	authorizer := docker.NewDockerAuthorizer(docker.WithAuthClient(client),
		docker.WithAuthCreds(func(asks string) (string, string, error) {
			if asks != endpoint.Host { // where a redirect has led to
				return "", "", nil
			}
			return host.Auth.credentials()
		}))
	place := docker.RegistryHost{
		Client: client, Authorizer: authorizer, Scheme: endpoint.Scheme, Host: endpoint.Host, Path: endpoint.Path,
		Capabilities: docker.HostCapabilityPull | docker.HostCapabilityResolve,
	}
	resolver := docker.NewResolver(docker.ResolverOptions{
		Hosts: func(string) ([]docker.RegistryHost, error) { return []docker.RegistryHost{place}, nil },
	})
	s.origins = append(s.origins, origin{name: endpoint.Host, ref: ref, resolver: resolver})
	return nil
}

func (t TLS) config() (*tls.Config, error) {
	config := &tls.Config{InsecureSkipVerify: t.InsecureSkipVerify}
	if t.CAFile != "" {
		roots, err := rootsWith(t.CAFile)
		if err != nil {
			return nil, err
		}
		config.RootCAs = roots
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// rootsWith returns the system's CAs and those in the file. A machine without
// CAs of its own is no error.
func rootsWith(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read CA certificates: %w", err)
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		roots = x509.NewCertPool()
	}
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read CA certificates: %s has none", file)
	}
	return roots, nil
}

// String names the image in progress messages.
func (s *Source) String() string { return "registry image " + s.ref }

// SetResolverOptions passes containerd's limits on to all origins.
func (s *Source) SetResolverOptions(options ...transfer.ImageResolverOption) {
	for _, o := range s.origins {
		if r, ok := o.resolver.(remotes.ResolverWithOptions); ok {
			r.SetOptions(options...)
		}
	}
}

// Resolve asks the origins in order for the image's descriptor. The first that
// has it is also the first to be asked for the contents.
func (s *Source) Resolve(ctx context.Context) (string, ocispec.Descriptor, error) {
	var failed attempts
	for i, o := range s.origins {
		_, desc, err := o.resolver.Resolve(ctx, o.ref)
		if err == nil {
			s.origins = append([]origin{o}, append(s.origins[:i:i], s.origins[i+1:]...)...)
			return s.ref, desc, nil
		}
		if failed.add(o, err); ctx.Err() != nil {
			break
		}
	}
	return "", ocispec.Descriptor{}, failed.err()
}

// Fetcher returns a fetcher that asks the origins in order for each part of the
// image, so that a mirror may miss some.
func (s *Source) Fetcher(context.Context, string) (transfer.Fetcher, error) {
	return fetcher(s.origins), nil
}

type fetcher []origin

// Fetch opens one part of the image.
func (f fetcher) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	var failed attempts
	for _, o := range f {
		body, err := o.fetch(ctx, desc)
		if err == nil {
			return body, nil
		}
		if failed.add(o, err); ctx.Err() != nil {
			break
		}
	}
	return nil, failed.err()
}

// fetch opens a part at one origin. containerd's fetcher sends its request at
// the first read, so that read is done here: only then is the origin known to
// have the part.
func (o origin) fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	f, err := o.resolver.Fetcher(ctx, o.ref)
	if err != nil {
		return nil, err
	}
	body, err := f.Fetch(ctx, desc)
	if err != nil {
		return nil, err
	}
	first := make([]byte, 1)
	n, err := body.Read(first)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, body.Close())
	}
	return &opened{ReadCloser: body, first: first[:n]}, nil
}

// opened is a body of which the first bytes were read.
type opened struct {
	io.ReadCloser
	first []byte
}

func (o *opened) Read(p []byte) (int, error) {
	if len(o.first) > 0 && len(p) > 0 {
		n := copy(p, o.first)
		o.first = o.first[n:]
		return n, nil
	}
	return o.ReadCloser.Read(p)
}

// Seek is used to resume a download; containerd asks for offsets from the start.
func (o *opened) Seek(offset int64, whence int) (int64, error) {
	seeker, ok := o.ReadCloser.(io.Seeker)
	if !ok || whence != io.SeekStart {
		return 0, errors.ErrUnsupported
	}
	o.first = nil
	return seeker.Seek(offset, whence)
}

// attempts collects why no origin had something, as one line.
type attempts struct {
	text []string
	errs []error
}

func (a *attempts) add(o origin, err error) {
	a.text = append(a.text, o.name+": "+err.Error())
	a.errs = append(a.errs, err)
}

func (a *attempts) err() error {
	if len(a.errs) == 1 {
		return a.errs[0]
	}
	return a
}

func (a *attempts) Error() string   { return strings.Join(a.text, "; ") }
func (a *attempts) Unwrap() []error { return a.errs }
