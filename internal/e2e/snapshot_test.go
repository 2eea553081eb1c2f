//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/snapshot"
	"github.com/clusterd/clusterd/internal/testkit/cluster"
	"github.com/clusterd/clusterd/internal/testkit/image"
)

// bucketConfig leads to the object store of TestSnapshots.
const bucketConfig = `snapshot-schedule-cron: "disabled"
snapshot-s3: true
snapshot-s3-endpoint: 127.0.0.1:19000
snapshot-s3-insecure: true
snapshot-s3-bucket: backups
snapshot-s3-folder: e2e
snapshot-s3-access-key: access
snapshot-s3-secret-key: a-secret-of-the-test
`

// TestSnapshots takes a cluster back to where it was, on its own machine and on another one.
func TestSnapshots(t *testing.T) {
	c := newCluster(t, "snapshots")
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	put(t, c, "/etc/clusterd/config.yaml", []byte(bucketConfig))
	serveBucket(t, c)
	s := start(t, c)

	s.runs(t, newPod("kept", idle()))
	s.runs(t, newPod("stays", idle()))
	s.write(t, "settings", "old")
	wants(t, s.snapshot(t, "save", "first"), "saved "+dirs.Snapshots()+"/first.tar.zst", "saved s3://backups/e2e/first.tar.zst", "revision")
	s.changeAll(t)
	highest, stays := s.revision(t), s.containers(t)["stays/c"]
	s.wantsRefused(t, []string{"needs the server to be stopped", "pid"}, "restore", "first")
	s.wantsRefused(t, []string{"first", "there already"}, "save", "first")

	if err := s.Stop(stopTimeout); err != nil {
		t.Fatal(err)
	}
	t.Run("Damaged", s.testDamagedSnapshot)
	wants(t, s.snapshot(t, "save", "second"), "saved "+dirs.Snapshots()+"/second.tar.zst") // without a server
	if err := os.Remove(s.Node.Path(dirs.Snapshots() + "/first.tar.zst")); err != nil {    // so that it comes from the bucket
		t.Fatal(err)
	}
	wants(t, s.snapshot(t, "restore", "first"), "restored", "kept aside: "+dirs.DB()+".old-", "start the server")
	s.start(t)
	s.isAsBefore(t, highest)
	if now := s.containers(t)["stays/c"]; now != stays {
		t.Errorf("the container that was there all the time was %s, is %s", stays, now)
	}

	t.Run("List", s.testListSnapshots)
	t.Run("Upgrade", s.testUpgradeSnapshot)
	t.Run("Schedule", s.testScheduledSnapshots)
	t.Run("OtherMachine", s.testRestoreElsewhere)
	if strings.Contains(s.Log(), "a-secret-of-the-test") {
		t.Error("the log has the bucket's secret")
	}
}

// serveBucket runs an object store in the node.
func serveBucket(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket("backups"); err != nil {
		t.Fatal(err)
	}
	serve(t, c.Node.Network(), "127.0.0.1:19000", gofakes3.New(backend).Server())
}

// snapshot runs a snapshot command in the node.
func (s *suite) snapshot(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.Clusterd(within(t, podTimeout), nil, append([]string{"snapshot"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// wantsRefused runs a snapshot command that must fail with one line.
func (s *suite) wantsRefused(t *testing.T, words []string, args ...string) {
	t.Helper()
	out, err := s.Clusterd(within(t, podTimeout), nil, append([]string{"snapshot"}, args...)...)
	if cluster.ExitCode(err) != 1 {
		t.Fatalf("snapshot %q: %s, %v", args, out, err)
	}
	if wants(t, err.Error(), words...); strings.Count(err.Error(), "\n") > 0 {
		t.Errorf("more than a line: %v", err)
	}
}

func (s *suite) write(t *testing.T, name, value string) {
	t.Helper()
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
	maps := s.client.CoreV1().ConfigMaps("default")
	_, err := maps.Update(t.Context(), m, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = maps.Create(t.Context(), m, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// changeAll makes, changes and deletes something.
func (s *suite) changeAll(t *testing.T) {
	t.Helper()
	s.write(t, "settings", "new")
	s.write(t, "added", "new")
	s.runs(t, newPod("added", idle()))
	if err := s.client.CoreV1().Pods("default").Delete(t.Context(), "kept", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.gone(t, "kept")
}

// revision is the datastore's.
func (s *suite) revision(t *testing.T) int64 {
	t.Helper()
	maps, err := s.client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return number(t, maps.ResourceVersion)
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// isAsBefore wants what was there before changeAll, at revisions above all that were.
func (s *suite) isAsBefore(t *testing.T, highest int64) {
	t.Helper()
	settings, err := s.client.CoreV1().ConfigMaps("default").Get(t.Context(), "settings", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if v := settings.Data["value"]; v != "old" {
		t.Errorf("the settings are %q", v)
	}
	if r := number(t, settings.ResourceVersion); r <= highest {
		t.Errorf("the settings are at %d after %d", r, highest)
	}
	if m, err := s.client.CoreV1().ConfigMaps("default").Get(t.Context(), "added", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what came after the snapshot is there: %v, %v", m, err)
	}
	s.pod(t, "kept", isReady)
	eventually(t, podTimeout, func(ctx context.Context) string { return s.leaks(ctx) }) // the other pod goes
	// A client that was away goes on from what it knew, and is told that this is over.
	w, err := s.client.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: strconv.FormatInt(highest, 10)})
	if err == nil {
		defer w.Stop()
		event := <-w.ResultChan()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from before the restore got %v", err)
	}
}

// testDamagedSnapshot restores archives that are not whole any more, on a stopped server.
func (s *suite) testDamagedSnapshot(t *testing.T) {
	whole, err := os.ReadFile(s.Node.Path(dirs.Snapshots() + "/first.tar.zst"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(s.Node.Path(dirs.DB()))
	if err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(whole)
	flipped[len(flipped)/2] ^= 1
	for name, data := range map[string][]byte{"flipped": flipped, "cut": whole[:len(whole)-50], "other": []byte("something else")} {
		file := "/tmp/" + name + ".tar.zst"
		put(t, s.Cluster, file, data)
		s.wantsRefused(t, []string{file, "cannot be restored"}, "restore", file)
	}
	s.wantsRefused(t, []string{"nothing-of-the-sort", "list"}, "restore", "./nothing-of-the-sort")
	if after, err := os.ReadFile(s.Node.Path(dirs.DB())); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the datastore was changed (%v)", err)
	}
}

// snapshots lists what is there, by place.
func (s *suite) snapshots(t *testing.T) map[string]snapshot.Info {
	t.Helper()
	var all []snapshot.Info
	if err := json.Unmarshal([]byte(s.snapshot(t, "list", "-o", "json")), &all); err != nil {
		t.Fatal(err)
	}
	found := map[string]snapshot.Info{}
	for _, i := range all {
		found[i.Location] = i
	}
	return found
}

func (s *suite) testListSnapshots(t *testing.T) {
	local, remote := dirs.Snapshots()+"/second.tar.zst", "s3://backups/e2e/second.tar.zst"
	found := s.snapshots(t)
	i := found[local]
	if len(found) != 4 || i.Name != "second" || i.Size == 0 || i.Revision == 0 || i.Keys == 0 || time.Since(i.Created) > time.Hour || i.Fault != "" {
		t.Errorf("there are %+v", found)
	}
	if i.Location = remote; found[remote] != i {
		t.Errorf("there is %+v, want %+v", found[remote], i)
	}
	info, err := os.Stat(s.Node.Path(local))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the archive has mode %v, %v", info.Mode(), err)
	}
	wants(t, s.snapshot(t, "list"), "NAME", "REVISION", "second", remote, strconv.FormatInt(i.Revision, 10), i.Version)
	wants(t, s.snapshot(t, "delete", "second"), "deleted second")
	if found := s.snapshots(t); len(found) != 2 {
		t.Errorf("after deleting there are %+v", found)
	}
	s.wantsRefused(t, []string{"second", "no snapshot"}, "delete", "second")
}

// testUpgradeSnapshot starts on a datastore that another version has had.
func (s *suite) testUpgradeSnapshot(t *testing.T) {
	if err := s.Stop(stopTimeout); err != nil {
		t.Fatal(err)
	}
	put(t, s.Cluster, dirs.DBVersion(), []byte("v1.36.9+clusterd.1\n"))
	s.start(t)
	eventually(t, podTimeout, func(context.Context) string {
		copies := 0
		for _, i := range s.snapshots(t) {
			if strings.HasPrefix(i.Name, "upgrade-snapshots-") && i.Version == "v1.36.9+clusterd.1" {
				copies++
			}
		}
		if copies != 2 {
			return fmt.Sprintf("%d copies of a snapshot from before the upgrade", copies)
		}
		return ""
	})
	if v, err := os.ReadFile(s.Node.Path(dirs.DBVersion())); err != nil || !strings.HasPrefix(string(v), "v1.37.2+clusterd.") {
		t.Errorf("the datastore is of %q, %v", v, err)
	}
}

// testScheduledSnapshots lets many be due and few be kept.
func (s *suite) testScheduledSnapshots(t *testing.T) {
	if err := s.Stop(stopTimeout); err != nil {
		t.Fatal(err)
	}
	often := strings.Replace(bucketConfig, `"disabled"`, `"@every 2s"`, 1)
	put(t, s.Cluster, "/etc/clusterd/config.yaml", []byte(often+"snapshot-retention: 2\nsnapshot-name: often\n"))
	s.start(t)
	seen := map[string]bool{}
	eventually(t, podTimeout, func(context.Context) string {
		count := map[bool]int{}
		for at, i := range s.snapshots(t) {
			if strings.HasPrefix(i.Name, "often-snapshots-") {
				count[strings.HasPrefix(at, "s3://")]++
				seen[i.Name] = true
			}
		}
		if len(seen) < 5 || count[true] > 3 || count[false] > 3 { // one more, until that is pruned
			return fmt.Sprintf("%d seen so far, %d here and %d in the bucket", len(seen), count[false], count[true])
		}
		return ""
	})
	if err := s.Stop(stopTimeout); err != nil {
		t.Fatal(err)
	}
	put(t, s.Cluster, "/etc/clusterd/config.yaml", []byte(bucketConfig))
	s.start(t)
}

// testRestoreElsewhere makes another machine the server of the same cluster.
func (s *suite) testRestoreElsewhere(t *testing.T) {
	s.snapshot(t, "save", "--snapshot-dir=/tmp/moving", "--snapshot-s3=false", "moving")
	archive, err := os.ReadFile(s.Node.Path("/tmp/moving/moving.tar.zst"))
	if err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, "snapshots2")
	put(t, c, dirs.Images()+"/tools.tar", image.Bytes(t, tools))
	other := start(t, c) // it has been another cluster
	if err := c.Stop(stopTimeout); err != nil {
		t.Fatal(err)
	}
	put(t, c, "/tmp/moving.tar.zst", archive)
	wants(t, other.snapshot(t, "restore", "/tmp/moving.tar.zst"), "restored", "kept aside: "+dirs.ServerTLS()+".old-", "kept aside: "+dirs.ServerToken()+".old-")
	other.start(t)
	settings, err := other.client.CoreV1().ConfigMaps("default").Get(t.Context(), "settings", metav1.GetOptions{})
	if err != nil || settings.Data["value"] != "old" {
		t.Errorf("the settings are %v, %v", settings.Data, err)
	}
	pod := newPod("elsewhere", idle())
	pod.Spec.NodeName = c.Node.Name()
	other.runs(t, pod)
	if got := other.exec(t, "elsewhere", "echo", "hello"); got != "hello" {
		t.Errorf("the pod says %q", got)
	}
	for _, file := range []string{"server-ca.crt", "service.key", "../token"} {
		here, err1 := os.ReadFile(s.Node.Path(filepath.Join(dirs.ServerTLS(), file)))
		there, err2 := os.ReadFile(c.Node.Path(filepath.Join(dirs.ServerTLS(), file)))
		if err1 != nil || err2 != nil || !bytes.Equal(here, there) {
			t.Errorf("%s is another one: %v, %v", file, err1, err2)
		}
	}
	// The first machine's administrator is the second's.
	put(t, c, "/tmp/kubeconfig", mustRead(t, s.Node.Path(datadir.Kubeconfig)))
	if out, err := c.Clusterd(within(t, podTimeout), nil, "kubectl", "--kubeconfig=/tmp/kubeconfig", "get", "configmap", "settings"); err != nil {
		t.Error(out, err)
	}
	if err := c.Stop(stopTimeout); err != nil {
		t.Error(err)
	}
}

func mustRead(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
