package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// pauseImage is in the payload of clusterd, and the baseline imports the same archive.
const pauseImage = "registry.k8s.io/pause:3.10.2"

// phaseTimeout bounds one start, and one wave of pods.
const phaseTimeout = 10 * time.Minute

// plan is what to measure.
type plan struct {
	clusterd, baseline, pause string
	starts, pods              int
	settle, idle              time.Duration
}

// times are the seconds from a start to its stages.
type times struct{ api, node, pod float64 }

// state is a cluster at rest.
type state struct {
	*footprint
	goroutines int
}

// result is one side's figures.
type result struct {
	first, second times
	few, many     state
	wave          float64 // seconds from no pod of the wave to all Ready
}

// side is one of the two clusters compared.
type side interface {
	// Start runs it in the background. Began is when that was.
	Start() error
	Began() time.Time
	// Client waits for the API.
	Client(ctx context.Context) (*kubernetes.Clientset, error)
	// Stop ends all but the pods.
	Stop(timeout time.Duration) error
	// Goroutines counts those of all its processes but the shims.
	Goroutines(ctx context.Context) (int, error)
}

// measure takes one side's figures. fresh makes it anew, in an empty node.
func (p plan) measure(ctx context.Context, name string, fresh func() (side, *lab.Node, error)) (*result, error) {
	var r result
	var firsts []times
	var s side
	var node *lab.Node
	var err error
	for i := range p.starts {
		say("%s: start %d of %d from an empty data directory", name, i+1, p.starts)
		if s, node, err = fresh(); err != nil {
			return nil, err
		}
		t, err := p.start(ctx, s, node.Name(), "first")
		if err != nil {
			return nil, err
		}
		firsts = append(firsts, t)
	}
	r.first = median(firsts)
	if err := s.Stop(time.Minute); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	time.Sleep(2 * time.Second) // reports of node status have whole seconds
	say("%s: second start", name)
	if r.second, err = p.start(ctx, s, node.Name(), "second"); err != nil {
		return nil, err
	}
	say("%s: at rest with 2 pods", name)
	if r.few, err = p.rest(ctx, s, node); err != nil {
		return nil, err
	}
	say("%s: %d more pods", name, p.pods)
	if r.wave, err = p.scale(ctx, s); err != nil {
		return nil, err
	}
	say("%s: at rest with them", name)
	if r.many, err = p.rest(ctx, s, node); err != nil {
		return nil, err
	}
	return &r, node.Down(ctx)
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }

// median takes each stage's by itself.
func median(all []times) times {
	stage := func(get func(times) float64) float64 {
		var v []float64
		for _, t := range all {
			v = append(v, get(t))
		}
		slices.Sort(v)
		return v[len(v)/2]
	}
	return times{
		stage(func(t times) float64 { return t.api }),
		stage(func(t times) float64 { return t.node }),
		stage(func(t times) float64 { return t.pod }),
	}
}

// start starts a side and times it until its API is ready, its node is, and a new pod runs, which is created as soon as
// the API takes it.
func (p plan) start(ctx context.Context, s side, node, pod string) (times, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	if err := s.Start(); err != nil {
		return times{}, err
	}
	elapsed := func() float64 { return time.Since(s.Began()).Seconds() }
	client, err := s.Client(ctx)
	if err != nil {
		return times{}, err
	}
	t := times{api: elapsed()}
	running := make(chan error, 1)
	go func() {
		err := runPod(ctx, client, pod)
		t.pod = elapsed()
		running <- err
	}()
	if err := poll(ctx, "the node to be Ready", func() bool {
		return cluster.NodeReady(ctx, client, node, s.Began())
	}); err != nil {
		return times{}, err
	}
	t.node = elapsed()
	err = <-running
	return t, err
}

// poll looks every 50 ms, like the baseline's own start.
func poll(ctx context.Context, what string, done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

func runPod(ctx context.Context, client kubernetes.Interface, name string) error {
	pods := client.CoreV1().Pods("default")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: pausePod()}
	var refused error
	if err := poll(ctx, "the API to take a pod", func() bool {
		_, refused = pods.Create(ctx, pod, metav1.CreateOptions{})
		return refused == nil
	}); err != nil {
		return fmt.Errorf("%w: %w", err, refused)
	}
	return poll(ctx, "pod "+name, func() bool {
		p, err := pods.Get(ctx, name, metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning
	})
}

func pausePod() corev1.PodSpec {
	return corev1.PodSpec{
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		Containers:                    []corev1.Container{{Name: "c", Image: pauseImage, ImagePullPolicy: corev1.PullNever}},
	}
}

// scale makes a Deployment of pause pods and returns the seconds until all are Ready.
func (p plan) scale(ctx context.Context, s side) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, phaseTimeout)
	defer cancel()
	client, err := s.Client(ctx)
	if err != nil {
		return 0, err
	}
	labels := map[string]string{"app": "wave"}
	wave := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "wave"}, Spec: appsv1.DeploymentSpec{
		Replicas: ptr.To(int32(p.pods)),
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pausePod()},
	}}
	began := time.Now()
	deployments := client.AppsV1().Deployments("default")
	if _, err := deployments.Create(ctx, wave, metav1.CreateOptions{}); err != nil {
		return 0, err
	}
	err = poll(ctx, "the pods to be Ready", func() bool {
		d, err := deployments.Get(ctx, "wave", metav1.GetOptions{})
		return err == nil && int(d.Status.ReadyReplicas) == p.pods
	})
	return time.Since(began).Seconds(), err
}

// rest takes the figures of a side that nobody asks for anything.
func (p plan) rest(ctx context.Context, s side, node *lab.Node) (st state, err error) {
	select {
	case <-ctx.Done():
		return st, ctx.Err()
	case <-time.After(p.settle):
	}
	if st.footprint, err = takeFootprint(ctx, node, p.idle); err != nil {
		return st, err
	}
	st.goroutines, err = s.Goroutines(ctx)
	return st, err
}
