package snapshot

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// BucketConfig says where in an S3-compatible object store snapshots are kept. Endpoint, Name, AccessKey and SecretKey are
// required.
type BucketConfig struct {
	Endpoint      string // host or host:port
	EndpointCA    string // file with the authorities of its certificate, the system's when empty
	SkipSSLVerify bool   // believe any certificate
	Insecure      bool   // plain HTTP
	Name          string // of the bucket, which must be there
	Region        string
	Folder        string // the beginning of all objects' names
	AccessKey     string
	SecretKey     string
}

// Bucket is a place in an object store.
type Bucket struct {
	c      BucketConfig
	client *minio.Client
}

const (
	// retries bound how long a call takes when nothing answers.
	retries = 3
	// partBytes is the size of the parts in which large snapshots are sent.
	partBytes = 16 << 20
)

// NewBucket makes a client. It connects to nothing yet.
func NewBucket(c BucketConfig) (*Bucket, error) {
	transport, err := c.transport()
	if err != nil {
		return nil, err
	}
	client, err := minio.New(c.Endpoint, &minio.Options{
		Creds: credentials.NewStaticV4(c.AccessKey, c.SecretKey, ""), Secure: !c.Insecure, Region: c.Region,
		Transport: transport, MaxRetries: retries,
	})
	if err != nil {
		return nil, fmt.Errorf("S3 endpoint %s: %w", c.Endpoint, err)
	}
	return &Bucket{c: c, client: client}, nil
}

func (c BucketConfig) transport() (*http.Transport, error) {
	t, err := minio.DefaultTransport(!c.Insecure)
	if err != nil {
		return nil, fmt.Errorf("make the transport to S3: %w", err)
	}
	t.IdleConnTimeout = 10 * time.Second // the next use is far away
	if c.Insecure {
		return t, nil
	}
	t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: c.SkipSSLVerify} //nolint:gosec // as asked
	if c.EndpointCA == "" {
		return t, nil
	}
	pem, err := os.ReadFile(c.EndpointCA)
	if err != nil {
		return nil, fmt.Errorf("read the authorities of the S3 endpoint: %w", err)
	}
	t.TLSClientConfig.RootCAs = x509.NewCertPool()
	if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read the authorities of the S3 endpoint: %s holds no certificate", c.EndpointCA)
	}
	return t, nil
}

// key is the object's name of a snapshot.
func (b *Bucket) key(name string) string { return path.Join(b.c.Folder, name+suffix) }

// Location is where the snapshot called name is, for people.
func (b *Bucket) Location(name string) string { return "s3://" + b.c.Name + "/" + b.key(name) }

// fault adds to errors where they come from.
func (b *Bucket) fault(act string, err error) error {
	return fmt.Errorf("%s S3 bucket %s at %s: %w", act, b.c.Name, b.c.Endpoint, err)
}

// Names are those of the archives in the bucket's folder.
func (b *Bucket) Names(ctx context.Context) ([]string, error) {
	var names []string
	prefix := ""
	if b.c.Folder != "" {
		prefix = path.Clean(b.c.Folder) + "/"
	}
	for o := range b.client.ListObjectsIter(ctx, b.c.Name, minio.ListObjectsOptions{Prefix: prefix}) {
		if o.Err != nil {
			return nil, b.fault("list the", o.Err)
		}
		name, ok := strings.CutSuffix(strings.TrimPrefix(o.Key, prefix), suffix)
		if ok && nameRule.MatchString(name) {
			names = append(names, name)
		}
	}
	return names, nil
}

// Describe reads the head of an archive in the bucket.
func (b *Bucket) Describe(ctx context.Context, name string) Info {
	i := Info{Name: name, Location: b.Location(name)}
	var err error
	if i.Size, i.Meta, err = b.describe(ctx, b.key(name)); err != nil {
		i.Fault = err.Error()
	}
	return i
}

func (b *Bucket) describe(ctx context.Context, key string) (size int64, meta Meta, err error) {
	stat, err := b.client.StatObject(ctx, b.c.Name, key, minio.StatObjectOptions{})
	if err != nil {
		return 0, meta, err
	}
	var o minio.GetObjectOptions
	if err := o.SetRange(0, headBytes-1); err != nil {
		return stat.Size, meta, err
	}
	head, _, _, err := minio.Core{Client: b.client}.GetObject(ctx, b.c.Name, key, o)
	if err != nil {
		return stat.Size, meta, err
	}
	defer head.Close()
	a, err := openArchive(head)
	if err != nil {
		return stat.Size, meta, err
	}
	defer a.close()
	return stat.Size, a.Meta, nil
}

// Delete removes an archive from the bucket.
func (b *Bucket) Delete(ctx context.Context, name string) error {
	if _, err := b.client.StatObject(ctx, b.c.Name, b.key(name), minio.StatObjectOptions{}); err != nil {
		return b.missing("look into the", err)
	}
	if err := b.client.RemoveObject(ctx, b.c.Name, b.key(name), minio.RemoveObjectOptions{}); err != nil {
		return b.missing("delete from the", err)
	}
	return nil
}

func (b *Bucket) missing(act string, err error) error {
	if minio.ToErrorResponse(err).Code == minio.NoSuchKey {
		return ErrNotFound
	}
	return b.fault(act, err)
}

// Upload copies the archive of a snapshot from a folder into the bucket.
func (b *Bucket) Upload(ctx context.Context, from Folder, name string) (Info, error) {
	_, err := b.client.FPutObject(ctx, b.c.Name, b.key(name), from.Path(name), minio.PutObjectOptions{
		ContentType: "application/zstd", PartSize: partBytes, NumThreads: 1,
	})
	if err != nil {
		return Info{}, b.fault("write to the", err)
	}
	i := from.Describe(ctx, name)
	i.Location = b.Location(name)
	return i, nil
}

// Download copies the archive of a snapshot from the bucket into a folder, where it is complete or not at all. The error is
// ErrNotFound when it is not there.
func (b *Bucket) Download(ctx context.Context, name string, to Folder) error {
	release, err := to.claim()
	if err != nil {
		return err
	}
	defer release()
	part := path.Join(to.scratch(), "archive")
	if err := b.client.FGetObject(ctx, b.c.Name, b.key(name), part, minio.GetObjectOptions{}); err != nil {
		return b.missing("read from the", err)
	}
	if err := os.Chmod(part, 0o600); err != nil {
		return fmt.Errorf("protect snapshot: %w", err)
	}
	if err := os.Rename(part, to.Path(name)); err != nil {
		return fmt.Errorf("keep snapshot: %w", err)
	}
	return nil
}
