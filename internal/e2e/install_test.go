//go:build e2e

package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clusterd/clusterd/internal/testkit/image"
)

// debian is a machine with systemd, which testdata/boot makes.
type debian struct {
	dir  string
	pid  string
	done chan error
}

// newDebian makes one that is off. It is kept outside of the test's own directory, whose path is too long for sockets.
func newDebian(t *testing.T) *debian {
	t.Helper()
	if _, err := os.Stat("/lib/systemd/systemd"); err != nil {
		t.Fatalf("%v: install systemd", err)
	}
	dir, err := os.MkdirTemp("/var/tmp", "clusterd-boot-")
	if err != nil {
		t.Fatal(err)
	}
	d := &debian{dir: dir}
	t.Cleanup(func() {
		if t.Failed() && d.pid != "" {
			out, _ := d.run(context.WithoutCancel(t.Context()), "journalctl --no-pager --lines 60 --output cat; systemctl --no-pager --failed")
			t.Logf("the end of the journal:\n%s", out)
		}
		if d.pid != "" {
			_ = exec.Command("kill", "-9", d.pid).Run()
			<-d.done
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return d
}

// boot starts the machine and waits until systemd has started all.
func (d *debian) boot(t *testing.T) {
	t.Helper()
	script, err := filepath.Abs(filepath.Join("testdata", "boot"))
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.OpenFile(filepath.Join(d.dir, "console"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	c := exec.Command(script, d.dir)
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	d.done = make(chan error, 1)
	go func() { d.done <- c.Wait() }()
	eventually(t, podTimeout, func(ctx context.Context) string {
		select {
		case err := <-d.done:
			d.done <- err
			console, _ := os.ReadFile(filepath.Join(d.dir, "console"))
			t.Fatalf("the machine ended with %v: %s", err, console)
		default:
		}
		pid, err := os.ReadFile(filepath.Join(d.dir, "pid"))
		if err != nil {
			return err.Error()
		}
		d.pid = strings.TrimSpace(string(pid))
		out, err := d.run(ctx, "systemctl is-system-running")
		if strings.TrimSpace(out) == "running" {
			return ""
		}
		return fmt.Sprintf("systemd says %q, %v", out, err)
	})
}

// off switches the machine off.
func (d *debian) off(t *testing.T) {
	t.Helper()
	if out, err := d.run(t.Context(), "systemctl --no-block start poweroff.target"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	select {
	case <-d.done:
		d.pid = ""
	case <-time.After(podTimeout):
		t.Fatal("the machine does not switch itself off")
	}
}

// run runs a line of shell in the machine and returns both streams.
func (d *debian) run(ctx context.Context, line string) (string, error) {
	out, err := exec.CommandContext(ctx, "nsenter", "-t", d.pid, "-m", "-n", "-u", "-i", "-p", "-C", "--", "sh", "-c", line).CombinedOutput()
	return string(out), err
}

// does is run that has to succeed.
func (d *debian) does(t *testing.T, line string) string {
	t.Helper()
	out, err := d.run(within(t, startTimeout+podTimeout), line)
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return out
}

// fails is run that has not to.
func (d *debian) fails(t *testing.T, line string) string {
	t.Helper()
	out, err := d.run(within(t, startTimeout+podTimeout), line)
	if err == nil {
		t.Fatalf("%s succeeded: %s", line, out)
	}
	return out
}

// put writes a file into the machine's /root and returns its SHA-256.
func (d *debian) put(t *testing.T, name string, data []byte) string {
	t.Helper()
	path := filepath.Join(d.dir, "root", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// installed is what state looks at here, with the places of an installation, and without what systemd has at work.
const installed = `
ip -o link | sed -E 's/^[0-9]+: //; s/@if[0-9]+//; s/^/link /'
ip route show table all | grep -v fe80: | sed 's/^/route /'
nft list ruleset | sed 's/^/rules /'
cut -d' ' -f5 /proc/self/mountinfo | grep -v /run/credentials | sed 's/^/mount /' | sort
find /sys/fs/cgroup -type d -name '*kube*' | sed 's/^/cgroup /'
find /etc /usr/local/bin /var/lib -not -path '/var/lib/systemd*' -printf 'file %y %m %p %l\n' | sort
find /run /tmp /var/log -path '*clusterd*' -o -path '*/pods*' -o -path '*/containers*' -o -name netns | grep -v /run/systemd | sed 's/^/file /' | sort
systemctl list-unit-files --no-legend --no-pager 'clusterd*' | sed 's/^/unit /'
ps -eo comm= | grep -E 'clusterd|shim|pause|sleep' | sed 's/^/process /'
true
`

// broken passes for the executable until it has to serve.
const broken = `#!/bin/sh
if [ "$1" = server ]; then echo "this one is broken" >&2; exit 1; fi
exec /root/clusterd "$@"
`

// TestInstall takes a machine with systemd through the life of an installation: put there, switched off and on, replaced
// by another one and by one that does not work, and removed.
func TestInstall(t *testing.T) {
	t.Parallel()
	d := newDebian(t)
	executable, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(filepath.Join("..", "..", "scripts", "install.sh"))
	if err != nil {
		t.Fatal(err)
	}
	sum := d.put(t, "clusterd", executable)
	d.put(t, "install.sh", script)
	d.boot(t)
	before := strings.Split(d.does(t, installed), "\n")

	t.Run("Refused", func(t *testing.T) { d.testRefused(t, before) })
	t.Run("Installed", func(t *testing.T) {
		d.put(t, "tools.tar", image.Bytes(t, tools))
		d.does(t, "mkdir -p /var/lib/clusterd/agent/images && cp /root/tools.tar /var/lib/clusterd/agent/images/")
		wants(t, d.does(t, "/root/install.sh --sha256 "+sum+" /root/clusterd"), "the server is Ready")
		wants(t, d.does(t, "systemctl show -p Type -p KillMode -p Delegate -p Restart -p ActiveState clusterd"),
			"Type=notify", "KillMode=process", "Delegate=yes", "Restart=always", "ActiveState=active")
		wants(t, d.does(t, "journalctl -u clusterd --output cat --no-pager"), "the cluster is ready")
		d.does(t, "clusterd kubectl run pod --image="+toolsImage+" --image-pull-policy=Never --command -- sleep 100000")
		d.does(t, "clusterd kubectl wait --for=condition=Ready --timeout=60s pod/pod")
	})
	if !t.Failed() {
		t.Run("Upgraded", func(t *testing.T) { d.testUpgrades(t, executable) })
	}
	if !t.Failed() {
		t.Run("SwitchedOffAndOn", d.testReboot)
	}
	if t.Failed() {
		return
	}
	wants(t, d.does(t, "clusterd uninstall --grace 2s"), "removed clusterd")
	wants(t, d.does(t, "cat /etc/clusterd/config.yaml; rm /etc/clusterd/config.yaml; rmdir /etc/clusterd"), "kept=yes") // the user's
	compare(t, before, strings.Split(d.does(t, installed), "\n"))
	t.Run("Node", d.testNode)
	t.Run("URL", func(t *testing.T) { d.testURL(t, sum) })
	t.Run("OpenRC", d.testOpenRC)
	compare(t, before, strings.Split(d.does(t, installed), "\n"))
	d.off(t)
}

// testNode installs a node without starting it: who may read the token, and what a second run keeps.
func (d *debian) testNode(t *testing.T) {
	const secret = "abcdef.0123456789abcdef"
	d.does(t, "echo "+secret+" | /root/install.sh --no-start --no-check --join https://192.0.2.1:6443 --token-file - /root/clusterd")
	wants(t, d.does(t, "cat /etc/systemd/system/clusterd.service"), "ExecStart=/usr/local/bin/clusterd agent\n")
	wants(t, d.does(t, "/root/install.sh --no-start --no-check /root/clusterd"), "start it with: systemctl start clusterd")
	wants(t, d.does(t, "cat /etc/clusterd/token /etc/clusterd/config.yaml.d/install.yaml"), secret, `join: "https://192.0.2.1:6443"`, "token-file: /etc/clusterd/token")
	if readable := d.does(t, "find /etc/clusterd -type f -perm /077; grep -rl "+secret+" /etc /var/log /usr/local/bin"); strings.TrimSpace(readable) != "/etc/clusterd/token" {
		t.Errorf("files that others can read, and those with the token: %s", readable)
	}
	wants(t, d.does(t, "systemctl is-enabled clusterd; systemctl is-active clusterd || true"), "enabled\ninactive\n")
	d.does(t, "clusterd uninstall")
}

// testRefused has what is wrong with an installation: it says so and changes nothing.
func (d *debian) testRefused(t *testing.T, before []string) {
	for _, row := range []struct{ name, args, want string }{
		{"no sum", "/root/clusterd", "what is the SHA-256"},
		{"wrong sum", "--sha256 " + strings.Repeat("0", 64) + " /root/clusterd", "nothing is changed"},
		{"no sum at all", "--sha256 123 /root/clusterd", "is not a sum"},
		{"another version", "--no-check --version v0.1 /root/clusterd", "is not version v0.1"},
		{"no executable", "--no-check /root/install.sh", "does not run on this machine"},
		{"no file", "--no-check /root/nothing", "there is no file"},
		{"token alone", "--token abc --no-check /root/clusterd", "give --join"},
		{"no URL", "--join example.org --no-check /root/clusterd", "not the URL of a server"},
		{"unknown option", "--fast /root/clusterd", "no option --fast"},
	} {
		wants(t, d.fails(t, "/root/install.sh "+row.args), row.want)
		if t.Failed() {
			t.Fatal(row.name)
		}
	}
	compare(t, before, strings.Split(d.does(t, installed), "\n"))
}

// pod is what a replacement must not touch: the pod's process, and how often it was started.
func (d *debian) pod(t *testing.T) string {
	t.Helper()
	return d.does(t, "pgrep -f '[s]leep 100000'; clusterd kubectl get pod pod -o jsonpath='{.status.containerStatuses[0].restartCount}'")
}

// testUpgrades replaces the executable by one that works and by one that does not.
func (d *debian) testUpgrades(t *testing.T, executable []byte) {
	pod := d.pod(t)
	d.does(t, "echo 'node-label: [kept=yes]' >/etc/clusterd/config.yaml; echo CLUSTERD_DEBUG=true >/etc/clusterd/environment")
	next := d.put(t, "next", append(slices.Clone(executable), "next"...))
	d.does(t, "cd /root && sha256sum next >next.sha256")
	wants(t, d.does(t, "/root/install.sh /root/next"), "the server is Ready")
	wants(t, d.does(t, "sha256sum /usr/local/bin/clusterd; cat /etc/clusterd/environment /etc/clusterd/config.yaml; ls -la /usr/local/bin"),
		next, "CLUSTERD_DEBUG=true", "kept=yes")
	if now := d.pod(t); now != pod {
		t.Errorf("after the upgrade the pod is %q, was %q", now, pod)
	}

	d.put(t, "broken", []byte(broken))
	wants(t, d.fails(t, "/root/install.sh --no-check /root/broken"), "the old one is back and Ready")
	left := d.does(t, "sha256sum /usr/local/bin/clusterd; ls -A /usr/local/bin")
	wants(t, left, next)
	if strings.Contains(left, ".clusterd") {
		t.Errorf("the installer left something in /usr/local/bin: %s", left)
	}
	if now := d.pod(t); now != pod {
		t.Errorf("after the failed upgrade the pod is %q, was %q", now, pod)
	}
}

// testReboot wants the cluster back without a hand's help.
func (d *debian) testReboot(t *testing.T) {
	d.off(t)
	d.boot(t)
	d.does(t, "clusterd ready --timeout 90s")
	eventually(t, podTimeout, func(ctx context.Context) string {
		if out, err := d.run(ctx, "pgrep -f '[s]leep 100000'"); err != nil {
			return "the pod does not run: " + out
		}
		return ""
	})
}

// testOpenRC installs where systemd cannot be seen and programs take the place of OpenRC's and note how they are called.
func (d *debian) testOpenRC(t *testing.T) {
	for _, name := range []string{"openrc-run", "rc-service", "rc-update"} {
		d.put(t, filepath.Join("openrc", name), []byte("#!/bin/sh\necho \"${0##*/} $*\" >>/root/openrc/calls\n"))
	}
	out := d.does(t, `unshare --mount sh -ec 'mount -t tmpfs tmpfs /run/systemd
		PATH=/root/openrc:$PATH
		/root/install.sh --no-start --no-check /root/clusterd
		sh -n /etc/init.d/clusterd
		cat /etc/init.d/clusterd /etc/logrotate.d/clusterd
		clusterd uninstall
		cat /root/openrc/calls'`)
	wants(t, out, "start it with: rc-service clusterd start", "supervisor=supervise-daemon", "command=/usr/local/bin/clusterd\n",
		"command_args=server\n", "output_log=/var/log/clusterd.log", "copytruncate", "rc-update add clusterd default\n",
		"rc-service --ifexists --ifstarted clusterd stop\n", "rc-update --all delete clusterd\n")
}
