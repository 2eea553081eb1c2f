package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// ours is clusterd in its node.
type ours struct{ *cluster.Cluster }

// Goroutines asks the API server: everything is one process.
func (o ours) Goroutines(ctx context.Context) (int, error) {
	client, err := o.Client(ctx)
	if err != nil {
		return 0, err
	}
	metrics, err := client.RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	return goroutines(string(metrics)), err
}

// goroutines reads the number from metrics in Prometheus's text format; 0 when it is not there.
func goroutines(metrics string) int {
	for line := range strings.Lines(metrics) {
		if v, ok := strings.CutPrefix(line, "go_goroutines "); ok {
			n, _ := strconv.ParseFloat(strings.TrimSpace(v), 64)
			return int(n)
		}
	}
	return 0
}

func (p plan) measureClusterd(ctx context.Context, machines *lab.Lab) (*result, error) {
	binary, err := filepath.Abs(p.clusterd)
	if err != nil {
		return nil, err
	}
	return p.measure(ctx, "clusterd", func() (side, *lab.Node, error) {
		node, err := machines.Up(ctx, "clusterd")
		return ours{&cluster.Cluster{Node: node, Binary: binary}}, node, err
	})
}

// baselineDir is the baseline's directory in its node.
const baselineDir = "/var/lib/clusterd/baseline"

// theirs is the baseline in its node.
type theirs struct {
	node    *lab.Node
	command []string
	process *lab.Process
	began   time.Time
}

func (p plan) measureBaseline(ctx context.Context, machines *lab.Lab) (*result, error) {
	program, err := filepath.Abs(filepath.Join(p.baseline, "bin", "baseline"))
	if err != nil {
		return nil, err
	}
	pause, err := filepath.Abs(p.pause)
	if err != nil {
		return nil, err
	}
	return p.measure(ctx, "baseline", func() (side, *lab.Node, error) {
		node, err := machines.Up(ctx, "baseline")
		return &theirs{node: node, command: []string{program, "up", baselineDir, pause}}, node, err
	})
}

func (b *theirs) Start() error {
	log, err := os.Create(b.node.Path("/var/log/baseline.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	b.began = time.Now()
	b.process, err = b.node.Start(log, nil, b.command...)
	return err
}

func (b *theirs) Began() time.Time { return b.began }

func (b *theirs) config() (*rest.Config, error) {
	return cluster.Client(b.node, filepath.Join(baselineDir, "admin.yaml"))
}

func (b *theirs) Client(ctx context.Context) (client *kubernetes.Clientset, err error) {
	err = poll(ctx, "the API", func() bool {
		config, err := b.config()
		if err != nil {
			return false
		}
		client, err = kubernetes.NewForConfig(config)
		return err == nil && client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	})
	return client, err
}

func (b *theirs) Stop(timeout time.Duration) error {
	if err := b.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return b.process.Wait(timeout)
}

// Goroutines asks each of the seven processes.
func (b *theirs) Goroutines(ctx context.Context) (int, error) {
	config, err := b.config()
	if err != nil {
		return 0, err
	}
	cert, err := tls.LoadX509KeyPair(config.CertFile, config.KeyFile)
	if err != nil {
		return 0, err
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext:     b.node.Network().DialContext,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}},
	}}
	sum := 0
	for _, url := range []string{
		"https://127.0.0.1:6443/metrics", "https://127.0.0.1:10257/metrics", "https://127.0.0.1:10259/metrics",
		"https://127.0.0.1:10250/metrics", "http://127.0.0.1:10249/metrics", "http://127.0.0.1:10299/metrics",
		"http://127.0.0.1:1338/v1/metrics",
	} {
		n, err := scrape(ctx, client, url)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func scrape(ctx context.Context, client *http.Client, url string) (int, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := client.Do(q)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err
	}
	n := goroutines(string(body))
	if n == 0 {
		return 0, fmt.Errorf("%s (%s) has no go_goroutines", url, res.Status)
	}
	return n, nil
}
