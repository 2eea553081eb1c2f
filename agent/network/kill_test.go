package network_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// agent is a Network in a process of its own.
type agent struct{ cmd *exec.Cmd }

func (nd *node) startAgent(t testing.TB) agent {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), agentVar+"="+nd.dir)
	cmd.Stderr = nd.log
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		cmd.Wait()
		t.Fatalf("agent: %q %v\n%s", line, err, nd.log)
	}
	return agent{cmd}
}

func (a agent) kill() {
	a.cmd.Process.Kill()
	a.cmd.Wait()
}

// fate is what the runtime knows of a pod when the agent dies.
type fate int

const (
	unknown  fate = iota // ADD got no answer: the sandbox was not recorded
	running              // ADD was answered
	deleting             // DEL got no answer: the sandbox is still recorded
	deleted              // DEL was answered, the namespace removed
)

// TestKillNine kills the agent in the middle of 50 pods that come and go, and
// counts after the restart.
func TestKillNine(t *testing.T) {
	nd := newNode(t)
	for round := range 6 {
		a := nd.startAgent(t)
		pods := make([]*pod, 50)
		for i := range pods {
			pods[i] = nd.newPod(t, fmt.Sprintf("r%d-%d", round, i))
		}
		fates := nd.comeAndGo(a, pods, time.Duration(rand.IntN(600))*time.Millisecond)
		var live []*pod
		count := map[fate]int{}
		for i, f := range fates {
			if count[f]++; f == running || f == deleting {
				live = append(live, pods[i])
			}
		}
		nd.setLive(t, live...)
		a = nd.startAgent(t)
		nd.checkAfterKill(t, pods, fates, len(live))
		for _, p := range live {
			p.del(t)
			must(t, syscall.Unmount(p.ns, 0))
			must(t, os.Remove(p.ns))
		}
		if r, v, f := nd.records(t), ports(t), nd.netnsFiles(t); len(r)+len(v)+len(f) != 0 {
			t.Errorf("left records %v, cables %v, namespaces %v", r, v, f)
		}
		nd.setLive(t)
		a.kill()
		t.Logf("round %d: unknown %d, running %d, deleting %d, deleted %d", round, count[unknown], count[running], count[deleting], count[deleted])
		if t.Failed() {
			t.Logf("agents said:\n%s", nd.log)
			return
		}
	}
}

// comeAndGo adds all pods at once, deletes every second one, and kills the agent
// after a while. It returns what the runtime would know of each.
func (nd *node) comeAndGo(a agent, pods []*pod, after time.Duration) []fate {
	fates := make([]fate, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() {
			mapping := portMapping(20000+i, 80, "tcp", "")
			if i%5 != 0 {
				mapping = ""
			}
			if p.tryAdd(mapping) != nil {
				return
			}
			if fates[i] = running; i%2 == 0 {
				return
			}
			fates[i] = deleting
			if p.tryDel() == nil {
				syscall.Unmount(p.ns, 0)
				os.Remove(p.ns)
				fates[i] = deleted
			}
		})
	}
	time.Sleep(after)
	a.kill()
	wg.Wait()
	return fates
}

func (nd *node) checkAfterKill(t *testing.T, pods []*pod, fates []fate, live int) {
	t.Helper()
	owner := map[netip.Addr]string{}
	recorded := 0
	for i, p := range pods {
		_, err := os.Stat(filepath.Join(nd.cfg.StateDir, "pods", p.id+"@eth0"))
		if err == nil {
			recorded++
		}
		switch has := err == nil; {
		case fates[i] == running && !has:
			t.Errorf("running pod %s has no record", p.id)
		case (fates[i] == unknown || fates[i] == deleted) && has:
			t.Errorf("pod %s, fate %d, still has a record", p.id, fates[i])
		}
		if fates[i] != running {
			continue
		}
		if other, twice := owner[p.v4]; twice {
			t.Errorf("pods %s and %s have %s", p.id, other, p.v4)
		}
		owner[p.v4] = p.id
		if _, err := nd.ask(request("CHECK", p.id, p.ns)); err != nil {
			t.Errorf("running pod: %v", err)
		}
	}
	if v := len(ports(t)); v > recorded {
		t.Errorf("%d cables for %d records", v, recorded)
	}
	if f := len(nd.netnsFiles(t)); f != live {
		t.Errorf("%d namespaces, the runtime knows %d", f, live)
	}
	fresh := nd.newPod(t, fmt.Sprintf("fresh%d", rand.Int())).add(t)
	if other, twice := owner[fresh.v4]; twice {
		t.Errorf("a new pod got %s of pod %s", fresh.v4, other)
	}
	fresh.del(t)
	must(t, syscall.Unmount(fresh.ns, 0))
	must(t, os.Remove(fresh.ns))
}
