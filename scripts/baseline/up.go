package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// pollInterval is how often a stage is looked at, startTimeout how long all of them together may take.
	pollInterval = 50 * time.Millisecond
	startTimeout = 3 * time.Minute
	// stopTimeout is what a process gets between SIGTERM and SIGKILL.
	stopTimeout = 10 * time.Second
)

// machine is the one node of the cluster and the processes that run on it.
type machine struct {
	dir, host, self string
	ip              net.IP
	began           time.Time
	running         []*exec.Cmd
}

// up starts the cluster in dir and returns when ctx is done and the processes have ended.
func up(ctx context.Context, dir string, images []string) error {
	m, err := newMachine(dir)
	if err != nil {
		return err
	}
	if err := m.prepare(); err != nil {
		return fmt.Errorf("prepare %s: %w", m.dir, err)
	}
	m.began = time.Now()
	defer m.stop()
	starting, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := m.start(starting, images); err != nil {
		return err
	}
	fmt.Printf("use: kubectl --kubeconfig %s\n", m.path("admin.yaml"))
	<-ctx.Done()
	return nil
}

func newMachine(dir string) (*machine, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	ip, err := nodeIP()
	return &machine{dir: dir, host: host, self: self, ip: ip}, err
}

// nodeIP is the IPv4 address of eth0, the one interface of a lab node.
func nodeIP() (net.IP, error) {
	i, err := net.InterfaceByName("eth0")
	if err != nil {
		return nil, fmt.Errorf("find eth0: %w", err)
	}
	addrs, err := i.Addrs()
	if err != nil {
		return nil, fmt.Errorf("read the addresses of eth0: %w", err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil {
			return n.IP, nil
		}
	}
	return nil, errors.New("eth0 has no IPv4 address")
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

// prepare writes what an administrator would have written before the first start; later starts find it.
func (m *machine) prepare() error {
	bin := filepath.Dir(m.self)
	if err := os.Setenv("PATH", bin+":"+os.Getenv("PATH")); err != nil {
		return err
	}
	if _, err := os.Stat(m.path("admin.yaml")); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(m.path("cni"), 0o755); err != nil {
		return err
	}
	if err := writeConfigs(m.dir, filepath.Join(filepath.Dir(bin), "cni")); err != nil {
		return err
	}
	return writePKI(m.dir, m.host, m.ip)
}

// start brings the processes up in the order that wastes least: what needs the API waits for it, nothing else waits.
func (m *machine) start(ctx context.Context, images []string) error {
	if err := m.startStore(ctx); err != nil {
		return err
	}
	if err := m.component("kube-apiserver", apiServerArgs(m.path, m.ip)); err != nil {
		return err
	}
	imported := make(chan error, 1)
	go func() { imported <- m.importImages(ctx, images) }()
	client, err := m.client()
	if err != nil {
		return err
	}
	if err := m.await(ctx, "API ready", func() bool {
		return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() == nil
	}); err != nil {
		return err
	}
	if err := <-imported; err != nil {
		return err
	}
	if err := m.startClients(); err != nil {
		return err
	}
	began := metav1.Now().Rfc3339Copy()
	return m.await(ctx, "node Ready", func() bool { return nodeReady(ctx, client, m.host, began) })
}

// startStore starts what needs no API: the container runtime, and the database until it can be reached.
func (m *machine) startStore(ctx context.Context) error {
	socket := m.path("kine.sock")
	source := "sqlite://" + m.path("state.db") +
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=busy_timeout(30000)&_txlock=immediate"
	if err := errors.Join(os.RemoveAll(socket), os.RemoveAll(m.path("containerd.sock"))); err != nil {
		return err
	}
	if err := m.spawn("containerd", "containerd", "-c", m.path("containerd.toml")); err != nil {
		return err
	}
	if err := m.spawn("kine", m.self, "kine", source, "unix://"+socket, "127.0.0.1:10299"); err != nil {
		return err
	}
	return m.await(ctx, "kine", func() bool { return exists(socket) })
}

// startClients starts everything that talks to the API.
func (m *machine) startClients() error {
	return errors.Join(
		m.component("kube-controller-manager", controllerArgs(m.path)),
		m.component("kube-scheduler", schedulerArgs(m.path)),
		m.component("kubelet", kubeletArgs(m.path, m.ip)),
		m.component("kube-proxy", []string{"--config=" + m.path("proxy-config.yaml")}),
	)
}

// client is the admin's, without a limit on its requests.
func (m *machine) client() (*kubernetes.Clientset, error) {
	c, err := clientcmd.BuildConfigFromFlags("", m.path("admin.yaml"))
	if err != nil {
		return nil, err
	}
	c.QPS = -1
	return kubernetes.NewForConfig(c)
}

// nodeReady says whether the node has reported itself Ready since the given time: after a second start the store still
// holds the last report of the first.
func nodeReady(ctx context.Context, client *kubernetes.Clientset, name string, since metav1.Time) bool {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Before(&since)
		}
	}
	return false
}

func (m *machine) importImages(ctx context.Context, images []string) error {
	if len(images) == 0 {
		return nil
	}
	socket := m.path("containerd.sock")
	err := m.await(ctx, "containerd", func() bool { return exists(socket) })
	for _, f := range images {
		c := exec.CommandContext(ctx, "ctr", "-a", socket, "-n", "k8s.io", "image", "import", f)
		if out, e := c.CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("import %s: %w: %s", f, e, out))
		}
	}
	m.stage("images imported")
	return err
}

func (m *machine) component(name string, args []string) error {
	return m.spawn(name, append([]string{m.self, name}, args...)...)
}

// spawn starts a process in a session of its own, which a terminal's ctrl-c does not reach.
func (m *machine) spawn(name string, args ...string) error {
	out, err := os.Create(m.path(name + ".log"))
	if err != nil {
		return err
	}
	defer out.Close()
	c := exec.Command(args[0], args[1:]...)
	c.Dir, c.Stdout, c.Stderr, c.SysProcAttr = m.dir, out, out, &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	m.running = append(m.running, c)
	return nil
}

func (m *machine) await(ctx context.Context, what string, done func() bool) error {
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) { return done(), nil })
	if err != nil {
		return fmt.Errorf("wait for %s (logs in %s): %w", what, m.dir, err)
	}
	m.stage(what)
	return nil
}

func (m *machine) stage(what string) {
	fmt.Printf("%-16s %6.2f s\n", what, time.Since(m.began).Seconds())
}

// stop ends the processes, the last started first.
func (m *machine) stop() {
	for i := len(m.running) - 1; i >= 0; i-- {
		p := m.running[i].Process
		_ = p.Signal(syscall.SIGTERM)
		late := time.AfterFunc(stopTimeout, func() { _ = p.Kill() })
		_ = m.running[i].Wait()
		late.Stop()
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
