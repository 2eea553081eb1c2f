//go:build e2e

package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/testkit/lab"
)

// downloads is where the machine finds the files of its /root by HTTP.
const downloads = "127.0.0.1:8099"

// serve answers at downloads until the test ends.
func (d *debian) serve(t *testing.T) {
	t.Helper()
	listener, err := lab.Namespace("/proc/"+d.pid+"/ns/net").Listen("tcp", downloads)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.FileServer(http.Dir(filepath.Join(d.dir, "root")))}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(listener) // ends with ErrServerClosed
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-done
	})
}

// testURL installs from a URL, beside which the sum has to be. The service is not started.
func (d *debian) testURL(t *testing.T, sum string) {
	d.serve(t)
	const url = "http://" + downloads + "/clusterd"
	before := strings.Split(d.does(t, installed), "\n")
	wants(t, d.fails(t, "/root/install.sh --no-start http://"+downloads+"/nothing"), "fetch http://"+downloads+"/nothing", "cannot be had")
	wants(t, d.fails(t, "/root/install.sh --no-start "+url), "fetch "+url+".sha256", "give the sum with --sha256")
	d.put(t, "clusterd.sha256", nil)
	wants(t, d.fails(t, "/root/install.sh --no-start "+url), "it is empty")
	d.put(t, "clusterd.sha256", []byte(strings.Repeat("0", 64)+"  clusterd\n"))
	wants(t, d.fails(t, "/root/install.sh --no-start "+url), "nothing is changed")
	compare(t, before, strings.Split(d.does(t, installed), "\n"))

	d.put(t, "clusterd.sha256", []byte(sum+"  clusterd\n"))
	wants(t, d.does(t, "/root/install.sh --no-start "+url), "start it with: systemctl start clusterd")
	wants(t, d.does(t, "sha256sum /usr/local/bin/clusterd"), sum)
	wants(t, d.does(t, "clusterd uninstall"), "removed clusterd")
}
