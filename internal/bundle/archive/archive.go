// Package archive is the format of clusterd's payload: a zstd-compressed tar
// beside a small index. The index alone answers whether an extracted copy is the
// right one, so that a start which finds its copy in place reads nothing else.
//
// Archives are deterministic: the same files give the same bytes.
package archive

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"
)

// Names of the two files of an archive inside its directory.
const (
	IndexName = "index.json"
	DataName  = "payload.tar.zst"
)

// decodeWindow bounds the memory of a decoder, in bytes. An encoder at the level
// that Pack uses never asks for more.
const decodeWindow = 8 << 20

// Index describes the files of an archive.
type Index struct {
	// Hash is the hex SHA-256 of the uncompressed tar.
	Hash string `json:"hash"`
	// Files are in the order of the tar.
	Files []File `json:"files"`
}

// File is one regular file of an archive.
type File struct {
	// Path is slash-separated and relative to the directory of extraction.
	Path string `json:"path"`
	// Size is in bytes.
	Size int64 `json:"size"`
	// Mode has the permission bits.
	Mode fs.FileMode `json:"mode"`
	// Source is the file on disk that Pack reads; it is not part of the index.
	Source string `json:"-"`
}

// Pack writes files as an archive into dir, which must exist. Each File needs
// Path, Mode and Source.
func Pack(dir string, files []File) error {
	out, err := os.Create(filepath.Join(dir, DataName))
	if err != nil {
		return fmt.Errorf("create archive: %w", err)
	}
	defer out.Close()
	index, err := pack(out, files)
	if err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("write archive: %w", err)
	}
	return writeIndex(filepath.Join(dir, IndexName), index)
}

func pack(out io.Writer, files []File) (Index, error) {
	compressed, err := zstd.NewWriter(out,
		zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(decodeWindow), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return Index{}, fmt.Errorf("open encoder: %w", err)
	}
	sum := sha256.New()
	tw := tar.NewWriter(io.MultiWriter(compressed, sum))
	index := Index{Files: make([]File, 0, len(files))}
	for _, f := range files {
		if f.Size, err = packFile(tw, f); err != nil {
			return Index{}, fmt.Errorf("pack %s: %w", f.Path, err)
		}
		index.Files = append(index.Files, f)
	}
	if err := errors.Join(tw.Close(), compressed.Close()); err != nil {
		return Index{}, fmt.Errorf("close archive: %w", err)
	}
	index.Hash = hex.EncodeToString(sum.Sum(nil))
	return index, nil
}

func packFile(tw *tar.Writer, f File) (size int64, err error) {
	if !filepath.IsLocal(f.Path) {
		return 0, fmt.Errorf("path is not local")
	}
	in, err := os.Open(f.Source)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return 0, err
	}
	header := &tar.Header{Typeflag: tar.TypeReg, Name: f.Path, Size: info.Size(), Mode: int64(f.Mode.Perm()), Format: tar.FormatUSTAR}
	if err := tw.WriteHeader(header); err != nil {
		return 0, err
	}
	return io.Copy(tw, in)
}

func writeIndex(path string, index Index) error {
	data, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return fmt.Errorf("encode index: %w", err)
	}
	if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	return nil
}

// ReadIndex reads the index of the archive in fsys. The error is fs.ErrNotExist
// when there is no archive.
func ReadIndex(fsys fs.FS) (Index, error) {
	data, err := fs.ReadFile(fsys, IndexName)
	if err != nil {
		return Index{}, fmt.Errorf("read index: %w", err)
	}
	var index Index
	if err := json.Unmarshal(data, &index); err != nil {
		return Index{}, fmt.Errorf("decode index: %w", err)
	}
	if len(index.Hash) != hex.EncodedLen(sha256.Size) {
		return Index{}, fmt.Errorf("decode index: hash %q is not a SHA-256", index.Hash)
	}
	return index, nil
}

// Complete reports whether dir has every file of the index at its size and mode.
func (x Index) Complete(dir string) bool {
	for _, f := range x.Files {
		info, err := os.Lstat(filepath.Join(dir, filepath.FromSlash(f.Path)))
		if err != nil || !info.Mode().IsRegular() || info.Size() != f.Size || info.Mode().Perm() != f.Mode.Perm() {
			return false
		}
	}
	return true
}

// Unpack writes the files of the archive in fsys into dir, which must exist, and
// flushes them to disk. It fails when the contents do not have the index's hash;
// dir is then of no use.
func (x Index) Unpack(fsys fs.FS, dir string) error {
	in, err := fsys.Open(DataName)
	if err != nil {
		return fmt.Errorf("open archive: %w", err)
	}
	defer in.Close()
	plain, err := zstd.NewReader(in,
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(decodeWindow))
	if err != nil {
		return fmt.Errorf("open decoder: %w", err)
	}
	defer plain.Close()
	sum := sha256.New()
	stream := io.TeeReader(plain, sum)
	if err := unpack(tar.NewReader(stream), dir); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != x.Hash {
		return fmt.Errorf("archive has SHA-256 %s, its index says %s", got, x.Hash)
	}
	return nil
}

func unpack(tr *tar.Reader, dir string) error {
	for {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("unpack %q: path is not local", header.Name)
		}
		if err := unpackFile(tr, filepath.Join(dir, header.Name), header.FileInfo().Mode().Perm()); err != nil {
			return fmt.Errorf("unpack %s: %w", header.Name, err)
		}
	}
}

func unpackFile(in io.Reader, path string, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer out.Close()
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	if err := errors.Join(out.Chmod(mode), out.Sync()); err != nil {
		return err
	}
	return out.Close()
}
