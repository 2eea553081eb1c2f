package snapshot

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/pki"
)

// metaFile is the first entry of an archive.
const metaFile = "snapshot.json"

// headBytes is more than what an archive says of itself takes in it.
const headBytes = 4096

// windowBytes bounds the memory for compressing, and for reading what others compressed.
const windowBytes = 1 << 20

// member is a file in the data directory, with its name in archives, which is its path there.
type member struct{ name, path string }

// members are the files that snapshots hold: the datastore first, then those that are kept beside it.
func members(dir datadir.Dir) []member {
	var all []member
	for _, path := range append([]string{dir.DB()}, append(pki.Dir(dir.ServerTLS()).Lasting(), dir.ServerToken())...) {
		name, _ := filepath.Rel(dir.Root(), path) // every path of dir is below its root
		all = append(all, member{name, path})
	}
	return all
}

// withContext makes a reader fail when its context has ended.
type withContext struct {
	ctx context.Context
	io.Reader
}

func (r withContext) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.Reader.Read(b)
}

// digest is the SHA-256 of a file.
type digest [sha256.Size]byte

// pack writes an archive of files and tells what it has written of each. Those that are not there are left out, but for the
// first one.
func pack(ctx context.Context, to io.Writer, meta Meta, files []member) (map[string]digest, error) {
	z, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(windowBytes), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	t := tar.NewWriter(z)
	if err := packMeta(t, meta); err != nil {
		return nil, err
	}
	if err := z.Flush(); err != nil { // so that it can be read without what follows
		return nil, err
	}
	written, err := packAll(ctx, t, meta, files)
	if err != nil {
		return nil, err
	}
	return written, errors.Join(t.Close(), z.Close())
}

func packMeta(t *tar.Writer, meta Meta) error {
	head, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	head = append(head, '\n')
	if err := t.WriteHeader(header(metaFile, int64(len(head)), meta)); err != nil {
		return err
	}
	if _, err := t.Write(head); err != nil {
		return err
	}
	return t.Flush()
}

func packAll(ctx context.Context, t *tar.Writer, meta Meta, files []member) (map[string]digest, error) {
	written := map[string]digest{}
	for i, m := range files {
		d, err := packFile(ctx, t, meta, m)
		if i > 0 && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("add %s: %w", m.name, err)
		}
		written[m.name] = d
	}
	return written, nil
}

func packFile(ctx context.Context, t *tar.Writer, meta Meta, m member) (d digest, err error) {
	f, err := os.Open(m.path)
	if err != nil {
		return d, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return d, err
	}
	if err := t.WriteHeader(header(m.name, info.Size(), meta)); err != nil {
		return d, err
	}
	return hash(t, withContext{ctx, f})
}

// hash copies and tells what.
func hash(to io.Writer, from io.Reader) (d digest, err error) {
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(to, h), from)
	h.Sum(d[:0])
	return d, err
}

func header(name string, size int64, meta Meta) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: meta.Created, Format: tar.FormatPAX}
}

// archive is one that is read.
type archive struct {
	Meta
	z *zstd.Decoder
	t *tar.Reader
}

// openArchive reads what an archive says of itself. close must be called in the end.
func openArchive(from io.Reader) (*archive, error) {
	z, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8*windowBytes))
	if err != nil {
		return nil, err
	}
	a := &archive{z: z, t: tar.NewReader(z)}
	if err := a.readMeta(); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *archive) close() { a.z.Close() }

// maxMeta is far more than a description has.
const maxMeta = 1 << 16

func (a *archive) readMeta() error {
	h, err := a.t.Next()
	if err != nil {
		return fmt.Errorf("this is no snapshot: %w", err)
	}
	if h.Name != metaFile {
		return fmt.Errorf("this is no snapshot: it begins with %q", h.Name)
	}
	if err := json.NewDecoder(io.LimitReader(a.t, maxMeta)).Decode(&a.Meta); err != nil {
		return fmt.Errorf("read %s: %w", metaFile, err)
	}
	if a.Format != format {
		return fmt.Errorf("its format %d is of a later version of clusterd (it was saved by %s)", a.Format, a.Version)
	}
	return nil
}

// each calls do with the content of each file of a data directory in the rest of the archive. No other and no file twice is
// accepted. All is read to the end, where the checksum is.
func (a *archive) each(ctx context.Context, files []member, do func(name string, content io.Reader) error) error {
	known := map[string]bool{}
	for _, m := range files {
		known[m.name] = true
	}
	for {
		h, err := a.t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if !known[h.Name] || h.Typeflag != tar.TypeReg {
			return fmt.Errorf("it holds %q, which is not known or there twice", h.Name)
		}
		known[h.Name] = false
		if err := do(h.Name, withContext{ctx, a.t}); err != nil {
			return err
		}
	}
	if known[files[0].name] {
		return fmt.Errorf("it lacks %s", files[0].name)
	}
	_, err := io.Copy(io.Discard, withContext{ctx, a.z})
	return err
}

// unpack writes the rest of the archive below root, where nothing of it may be yet.
func (a *archive) unpack(ctx context.Context, root string, files []member) error {
	return a.each(ctx, files, func(name string, content io.Reader) error {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	})
}
