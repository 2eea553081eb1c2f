package resourcemetrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

const (
	// fresh is how long a kubelet's figures are good: it does not look at most of them more often itself.
	fresh = 10 * time.Second
	// patience bounds how long a kubelet may take, since one that does not answer holds up those who ask for all nodes.
	patience = 5 * time.Second
	// forgotten is when the figures of a node go at the next question, if it is not among those that are asked for.
	forgotten = time.Minute
	// most bounds a kubelet's answer, in bytes: a node is not trusted with the server's memory.
	most = 32 << 20
)

// reader asks kubelets, and remembers for a while what they said.
type reader struct {
	find Find
	log  *slog.Logger

	mu    sync.Mutex
	nodes map[string]*node
}

// node is what one kubelet said last.
type node struct {
	mu    sync.Mutex // held while the kubelet is asked
	asked time.Time
	usage *usage // nil if it did not answer

	wanted time.Time // by those who ask; guarded by reader.mu
}

// read returns the usage of each of the named nodes whose kubelet answers.
func (r *reader) read(ctx context.Context, names map[string]bool) map[string]*usage {
	var mu sync.Mutex
	var wg sync.WaitGroup
	all := map[string]*usage{}
	r.forget()
	for name := range names {
		wg.Go(func() {
			if u := r.ask(ctx, name); u != nil {
				mu.Lock()
				defer mu.Unlock()
				all[name] = u
			}
		})
	}
	wg.Wait()
	return all
}

// ask returns what the kubelet says or has said a moment ago.
func (r *reader) ask(ctx context.Context, name string) *usage {
	n := r.node(name)
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.asked) < fresh {
		return n.usage
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience) // others wait for the answer too
	defer cancel()
	u, err := r.fetch(ctx, name)
	if err != nil {
		r.log.Debug("no resource metrics of a node", "node", name, "error", err)
	}
	n.asked, n.usage = time.Now(), u
	return u
}

// forget drops the memory of nodes that nobody has wanted for a while. There is one only for as many nodes as there were.
func (r *reader) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.nodes, func(_ string, n *node) bool { return time.Since(n.wanted) > forgotten })
}

// node returns the memory of a node.
func (r *reader) node(name string) *node {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[name]
	if n == nil {
		n = &node{}
		r.nodes[name] = n
	}
	n.wanted = time.Now()
	return n
}

func (r *reader) fetch(ctx context.Context, name string) (*usage, error) {
	kubelet, err := r.find(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("find the kubelet: %w", err)
	}
	at := kubelet.URL
	at.Path, at.RawQuery = "/stats/summary", "only_cpu_and_memory=true"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet: %w", err)
	}
	res, err := kubelet.Transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask the kubelet: it says %s", res.Status)
	}
	var s stats.Summary
	if err := json.NewDecoder(io.LimitReader(res.Body, most)).Decode(&s); err != nil {
		return nil, fmt.Errorf("read the kubelet's answer: %w", err)
	}
	return newUsage(&s), nil
}
