package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/pki"
	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// agentPlan is what to measure of nodes alone.
type agentPlan struct {
	clusterd, baseline, pause string
	pods                      int
	settle, idle              time.Duration

	dirs          datadir.Dir
	server, agent *cluster.Cluster
	other         *lab.Node
}

// agentRows are the figures of a node with pods. The shims are left out of what has a goal: they are the same program on
// both sides, one a pod.
var agentRows = []row{
	{"anonymous memory, MiB", func(r *result) float64 { return float64(r.few.others.anon) / mib }, 0.7},
	{"PSS, MiB", func(r *result) float64 { return float64(r.few.others.pss) / mib }, 0},
	{"PSS of the shims, MiB", func(r *result) float64 { return float64(r.few.shims.pss) / mib }, 0},
	{"CPU without shims, s/min", func(r *result) float64 { return r.few.others.cpu }, 0.5},
	{"CPU, s/min", func(r *result) float64 { return r.few.others.cpu + r.few.shims.cpu }, 0},
	{"written, KiB/min", func(r *result) float64 { return float64(r.few.others.written) / 1024 }, 0},
	{"threads", func(r *result) float64 { return float64(r.few.others.threads) }, 0},
}

func agentCommand(ctx context.Context, args []string) error {
	var p agentPlan
	flags := flag.NewFlagSet("bench agent", flag.ContinueOnError)
	flags.StringVar(&p.clusterd, "clusterd", "bin/clusterd", "the executable to measure")
	flags.StringVar(&p.baseline, "baseline", "", "the directory made by scripts/baseline/build")
	flags.StringVar(&p.pause, "pause", "bin/parts/pause.tar", "the archive of the pause image, as in clusterd's payload, for the baseline")
	flags.IntVar(&p.pods, "pods", 10, "pods on each node")
	flags.DurationVar(&p.settle, "settle", time.Minute, "time to come to rest before the footprint is taken")
	flags.DurationVar(&p.idle, "idle", 2*time.Minute, "time over which the footprint is taken")
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, path := range []*string{&p.clusterd, &p.baseline, &p.pause} {
		abs, err := filepath.Abs(*path)
		if err != nil {
			return err
		}
		*path = abs
	}
	machines, err := lab.New("/var/tmp/clusterd-bench")
	if err != nil {
		return err
	}
	defer func() { _ = machines.Clean(context.WithoutCancel(ctx)) }()
	ours, theirs, err := p.run(ctx, machines)
	if err != nil {
		return err
	}
	if !agentReport(os.Stdout, p.pods, ours, theirs) {
		return errMissed
	}
	return nil
}

// run starts the server and both nodes, and measures the two at the same time.
func (p *agentPlan) run(ctx context.Context, machines *lab.Lab) (ours, theirs *result, err error) {
	starting, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	client, err := p.startServer(starting, machines)
	if err != nil {
		return nil, nil, fmt.Errorf("start the server: %w", err)
	}
	if err := p.startAgent(starting, machines); err != nil {
		return nil, nil, fmt.Errorf("start clusterd's node: %w", err)
	}
	if err := p.startBaseline(starting, machines); err != nil {
		return nil, nil, fmt.Errorf("start the baseline's node: %w", err)
	}
	for _, node := range []*lab.Node{p.agent.Node, p.other} {
		if err := fill(starting, client, node.Name(), p.pods); err != nil {
			return nil, nil, err
		}
	}
	say("at rest with %d pods on each node", p.pods)
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-time.After(p.settle):
	}
	return footprints(ctx, p.agent.Node, p.other, p.idle)
}

// footprints takes those of two nodes at the same time.
func footprints(ctx context.Context, one, two *lab.Node, during time.Duration) (a, b *result, err error) {
	type taken struct {
		f   *footprint
		err error
	}
	second := make(chan taken, 1)
	go func() {
		f, err := takeFootprint(ctx, two, during)
		second <- taken{f, err}
	}()
	first, err := takeFootprint(ctx, one, during)
	other := <-second
	if err == nil {
		err = other.err
	}
	return &result{few: state{footprint: first}}, &result{few: state{footprint: other.f}}, err
}

func (p *agentPlan) startServer(ctx context.Context, machines *lab.Lab) (*kubernetes.Clientset, error) {
	say("a server without a node")
	node, err := machines.Up(ctx, "server")
	if err != nil {
		return nil, err
	}
	if p.dirs, err = datadir.New(datadir.DefaultRoot); err != nil {
		return nil, err
	}
	p.server = &cluster.Cluster{Node: node, Binary: p.clusterd, Args: []string{"--disable-agent"}}
	if err := p.server.Start(); err != nil {
		return nil, err
	}
	return p.server.Client(ctx)
}

func (p *agentPlan) startAgent(ctx context.Context, machines *lab.Lab) error {
	say("clusterd's node")
	node, err := machines.Up(ctx, "clusterd")
	if err != nil {
		return err
	}
	token, err := os.ReadFile(p.server.Node.Path(p.dirs.NodeToken()))
	if err != nil {
		return err
	}
	p.agent = &cluster.Cluster{Node: node, Binary: p.clusterd, Role: "agent", Args: []string{
		"--join", "https://" + p.server.Node.Addr() + ":6443", "--token", strings.TrimSpace(string(token)),
	}}
	return p.agent.Start()
}

// startBaseline gives the baseline the cluster's authorities, from which it makes its certificates.
func (p *agentPlan) startBaseline(ctx context.Context, machines *lab.Lab) (err error) {
	say("the baseline's node")
	if p.other, err = machines.Up(ctx, "baseline"); err != nil {
		return err
	}
	const authorities = "/var/lib/clusterd/authorities"
	if err := os.MkdirAll(p.other.Path(authorities), 0o700); err != nil {
		return err
	}
	for _, name := range []string{pki.ServerCA + ".crt", pki.ClientCA + ".crt", pki.ClientCA + ".key"} {
		data, err := os.ReadFile(filepath.Join(p.server.Node.Path(p.dirs.ServerTLS()), name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(p.other.Path(authorities), name), data, 0o600); err != nil {
			return err
		}
	}
	log, err := os.Create(p.other.Path("/var/log/baseline.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	_, err = p.other.Start(log, nil, filepath.Join(p.baseline, "bin", "baseline"), "join", baselineDir, p.server.Node.Addr(), authorities, p.pause)
	return err
}

// fill runs pods on a node, once it is Ready.
func fill(ctx context.Context, client kubernetes.Interface, node string, pods int) error {
	if err := poll(ctx, "node "+node+" to be Ready", func() bool { return cluster.NodeReady(ctx, client, node, time.Time{}) }); err != nil {
		return err
	}
	for i := range pods {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, i)}, Spec: pausePod()}
		pod.Spec.NodeName = node
		if err := poll(ctx, "the API to take a pod", func() bool {
			_, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
			return err == nil
		}); err != nil {
			return err
		}
	}
	return poll(ctx, "the pods of "+node, func() bool {
		list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node + ",status.phase=Running"})
		return err == nil && len(list.Items) == pods
	})
}

// agentReport prints the figures of both sides and whether the goals are reached.
func agentReport(w io.Writer, pods int, ours, theirs *result) bool {
	printProcesses(w, fmt.Sprintf("clusterd agent, %d pods", pods), ours.few.footprint)
	printProcesses(w, fmt.Sprintf("baseline, %d pods", pods), theirs.few.footprint)
	return compareSides(w, agentRows, ours, theirs)
}
