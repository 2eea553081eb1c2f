package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/clusterd/clusterd/internal/join"
)

const (
	contactTimeout = 10 * time.Second
	// firstRetry and lastRetry are how soon, and how rarely, what may help is tried again.
	firstRetry = time.Second
	lastRetry  = 15 * time.Second
	// maxInfo bounds what is read of a server's answer, in bytes.
	maxInfo = 1 << 20
)

// final is an error that trying again does not mend.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// insist calls try until it succeeds, ctx ends, or its error is final. Each new reason for another try is logged once.
func insist(ctx context.Context, log *slog.Logger, doing string, try func(context.Context) error) error {
	wait, said := firstRetry, ""
	for {
		err := try(ctx)
		var f final
		if err == nil || ctx.Err() != nil || errors.As(err, &f) {
			return errors.Join(ctx.Err(), err)
		}
		if text := err.Error(); text != said {
			log.Warn(doing+": trying again", "error", err)
			said = text
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
		wait = min(2*wait, lastRetry)
	}
}

// Ask asks the server at url for the cluster's description until it answers, has to be mended by the user, or ctx ends.
func Ask(ctx context.Context, url string, t join.Token, log *slog.Logger) (info join.Info, err error) {
	err = insist(ctx, log, "joining", func(ctx context.Context) (err error) {
		info, err = ask(ctx, url, t)
		return err
	})
	return info, err
}

// ask asks the server at url for the cluster's description.
func ask(ctx context.Context, url string, t join.Token) (join.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, contactTimeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+join.Path, nil)
	if err != nil {
		return join.Info{}, final{err}
	}
	r.Header.Set("Authorization", "Bearer "+t.Bearer())
	client := http.Client{Transport: &http.Transport{TLSClientConfig: known(url, t.CAHash), DisableKeepAlives: true}}
	res, err := client.Do(r)
	var wrong final
	switch {
	case errors.As(err, &wrong): // without the method and the path, which say nothing to the user
		return join.Info{}, wrong
	case err != nil:
		return join.Info{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxInfo))
	if err != nil {
		return join.Info{}, fmt.Errorf("read the answer of %s: %w", url, err)
	}
	return understand(url, res.StatusCode, body)
}

// understand reads a server's answer.
func understand(url string, status int, body []byte) (join.Info, error) {
	var refusal join.Refusal
	switch {
	case status == http.StatusOK:
		info, err := join.Decode(body)
		if err != nil {
			return join.Info{}, final{fmt.Errorf("%s: %w: the server may be of another version", url, err)}
		}
		return info, nil
	case status == http.StatusUnauthorized && json.Unmarshal(body, &refusal) == nil && refusal.Reason != "":
		return join.Info{}, final{fmt.Errorf("the server at %s does not let this machine in: the token %s", url, refusal.Reason)}
	case status == http.StatusUnauthorized || status == http.StatusForbidden || status == http.StatusNotFound:
		return join.Info{}, final{fmt.Errorf("the server at %s lets no nodes join: is it an older version?", url)}
	}
	return join.Info{}, fmt.Errorf("the server at %s answers %d %s", url, status, strings.TrimSpace(string(body[:min(len(body), 200)])))
}

// known accepts a server whose certificate is signed by the authority with the hash, whatever the address by which it was
// reached.
func known(url, caHash string) *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it: no root is known yet but by its hash
		ServerName:         join.ServerName,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return final{fmt.Errorf("the server at %s shows no certificate", url)}
			}
			roots := x509.NewCertPool()
			found := false
			for _, c := range s.PeerCertificates {
				if c.IsCA && join.HashOf(c) == caHash {
					roots.AddCert(c)
					found = true
				}
			}
			if !found {
				return final{fmt.Errorf("the server at %s is not the one that the token is for (its authority has another hash): check the URL, or take the token from that server", url)}
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, DNSName: join.ServerName})
			if err != nil {
				return fmt.Errorf("the certificate of the server at %s: %w", url, err)
			}
			return nil
		},
	}
}
