package image

import (
	"bytes"
	"compress/gzip"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// Bytes is what Archive writes.
func Bytes(t testing.TB, images ...*Image) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Archive(&b, images...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Gzip compresses an archive.
func Gzip(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Zstd compresses an archive.
func Zstd(t testing.TB, data []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	return w.EncodeAll(data, nil)
}
