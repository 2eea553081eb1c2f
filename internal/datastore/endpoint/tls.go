package endpoint

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// FileError is a mistake in one of Files, whose field Name is.
type FileError struct {
	Name string
	error
}

// Unwrap is the mistake itself.
func (e *FileError) Unwrap() error { return e.error }

// setTLS reads the files, so that what is wrong with them is said before anything is done.
func (e *Endpoint) setTLS(files Files) error {
	if files == (Files{}) {
		return nil
	}
	if (files.Cert == "") != (files.Key == "") {
		return &FileError{"Cert", errors.New("a client certificate and its key belong together: give both files or none")}
	}
	for _, path := range []*string{&files.CA, &files.Cert, &files.Key} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("locate %s: %w", *path, err)
		}
		*path = abs
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if files.CA != "" {
		pool, err := readCA(files.CA)
		if err != nil {
			return &FileError{"CA", err}
		}
		c.RootCAs = pool
	}
	if files.Cert != "" {
		pair, err := tls.LoadX509KeyPair(files.Cert, files.Key)
		if err != nil {
			return &FileError{"Cert", fmt.Errorf("read client certificate %s and key %s: %w", files.Cert, files.Key, err)}
		}
		c.Certificates = []tls.Certificate{pair}
	}
	e.TLS, e.Files = c, files
	return nil
}

func readCA(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("read CA: there is no certificate in %s", path)
	}
	return pool, nil
}
