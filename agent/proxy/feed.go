package proxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// feed is the API as kube-proxy sees it: what the cluster's says, but for its own Node, which keeps its first addresses and
// never goes.
//
// Why: kube-proxy ends the process when the addresses of its Node change and when the Node is deleted, and takes no client
// but a kubeconfig. It needs those addresses for nothing that cannot do without: NodePorts are open at all of the host's.
type feed struct {
	api     http.RoundTripper
	base    *url.URL
	secret  string // which kube-proxy shows
	through *httputil.ReverseProxy
	log     *slog.Logger

	mu   sync.Mutex
	node *v1.Node // as last seen, with its first addresses
}

// newFeed makes the API that the configuration leads to one for kube-proxy, for who shows the secret.
func newFeed(c *rest.Config, log *slog.Logger) (*feed, error) {
	api, err := rest.TransportFor(c)
	if err != nil {
		return nil, fmt.Errorf("make kube-proxy's client: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(c)
	if err != nil {
		return nil, fmt.Errorf("make kube-proxy's client: %w", err)
	}
	f := &feed{api: api, base: base, secret: rand.Text(), log: log}
	f.through = &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { f.lead(r.Out) },
		Transport:     api,
		FlushInterval: -1,
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0), // of requests that end in the middle, as watches do
	}
	return f, nil
}

// lead makes a request for the feed one for the API.
func (f *feed) lead(r *http.Request) {
	r.URL.Scheme, r.URL.Host, r.Host = f.base.Scheme, f.base.Host, ""
	r.Header.Del("Authorization")
}

// serve answers on the listener until ctx ends.
func (f *feed) serve(ctx context.Context, l net.Listener, c tls.Certificate) {
	s := &http.Server{Handler: f, TLSConfig: &tls.Config{Certificates: []tls.Certificate{c}}, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, 0)}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.ServeTLS(l, "", ""); err != nil && ctx.Err() == nil {
		f.log.Error("kube-proxy is cut off from the API", "error", err)
	}
}

func (f *feed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+f.secret)) != 1 {
		http.Error(w, "this is for kube-proxy alone", http.StatusUnauthorized)
		return
	}
	if r.URL.Path != "/api/v1/nodes" || r.Method != http.MethodGet {
		f.through.ServeHTTP(w, r)
		return
	}
	if err := f.nodes(w, r); err != nil && r.Context().Err() == nil {
		f.log.Debug("kube-proxy's view of its node ended", "error", err)
	}
}

// nodes answers a list or watch of kube-proxy's own Node.
func (f *feed) nodes(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	watching, _ := strconv.ParseBool(q.Get("watch"))
	if watching && q.Has("sendInitialEvents") { // a Node that has gone would be missing among them: kube-proxy lists instead
		return write(w, http.StatusUnprocessableEntity, metav1.Status{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity, Message: "list first",
		})
	}
	out := r.Clone(r.Context())
	f.lead(out)
	out.RequestURI = ""
	out.Header.Set("Accept", "application/json")
	out.Header.Del("Accept-Encoding")
	res, err := f.api.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		w.WriteHeader(res.StatusCode)
		_, err := io.Copy(w, res.Body)
		return err
	}
	if watching {
		return f.watch(w, res.Body)
	}
	return f.list(w, res.Body)
}

func (f *feed) list(w http.ResponseWriter, from io.Reader) error {
	var list v1.NodeList
	if err := json.NewDecoder(from).Decode(&list); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return err
	}
	for i := range list.Items {
		f.still(&list.Items[i])
	}
	if last := f.last(); last != nil && len(list.Items) == 0 {
		list.Items = []v1.Node{*last}
	}
	list.APIVersion, list.Kind = "v1", "NodeList"
	return write(w, http.StatusOK, list)
}

// watch hands events on, but for those that say that the Node has gone.
func (f *feed) watch(w http.ResponseWriter, from io.Reader) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	events := json.NewDecoder(from)
	if err := flush(); err != nil {
		return err
	}
	for {
		var e metav1.WatchEvent
		if err := events.Decode(&e); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		switch watch.EventType(e.Type) {
		case watch.Deleted:
			continue
		case watch.Added, watch.Modified:
			object, err := f.stillJSON(e.Object.Raw)
			if err != nil {
				return err
			}
			e.Object = runtime.RawExtension{Raw: object}
		}
		if err := json.NewEncoder(w).Encode(e); err != nil {
			return err
		}
		if err := flush(); err != nil {
			return err
		}
	}
}

func (f *feed) stillJSON(raw []byte) ([]byte, error) {
	var n v1.Node
	if err := json.Unmarshal(raw, &n); err != nil {
		return nil, fmt.Errorf("read the Node: %w", err)
	}
	f.still(&n)
	n.APIVersion, n.Kind = "v1", "Node"
	return json.Marshal(n)
}

// still gives a Node the addresses that it had when it had some first, and no end.
func (f *feed) still(n *v1.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.node != nil {
		n.Status.Addresses = f.node.Status.Addresses
	}
	if len(n.Status.Addresses) > 0 {
		f.node = n.DeepCopy()
	}
}

func (f *feed) last() *v1.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node
}

func write(w http.ResponseWriter, status int, o any) error {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(o); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, err := b.WriteTo(w)
	return err
}
