package scheduler_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/server/scheduler"
)

func TestConfigFile(t *testing.T) {
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	for _, row := range []struct{ name, file, want string }{
		{"profiles", head + "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {score: {disabled: [{name: '*'}]}}}]", ""},
		{"no profile twice", head + "profiles: [{schedulerName: a}, {schedulerName: a}]", "Duplicate value"},
		{"unknown field", head + "profilez: []", "profilez"},
		{"other kind", "apiVersion: v1\nkind: Pod\n", "no kind"},
		{"not YAML", "{", "--kube-scheduler-config"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "scheduler.yaml")
			if err := os.WriteFile(path, []byte(row.file), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := scheduler.New(scheduler.Config{ConfigFile: path, Transport: &inproc.Transport{}}, slog.New(slog.DiscardHandler))
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), path)):
				t.Errorf("error is %v, want it to name the file and say %q", err, row.want)
			}
		})
	}
}

func TestUnknownArgument(t *testing.T) {
	_, err := scheduler.New(scheduler.Config{Args: []string{"bogus=1"}, Transport: &inproc.Transport{}}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "--kube-scheduler-arg bogus=1") {
		t.Errorf("error is %v", err)
	}
}
