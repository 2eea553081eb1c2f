package scheduler

import (
	"log/slog"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	configscheme "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/clusterd/clusterd/internal/inproc"
	"github.com/clusterd/clusterd/internal/testkit"
)

// TestConfiguration keeps the scheduler's whole configuration as it is, upstream's defaults with it, so that a change is one
// that somebody has looked at.
func TestConfiguration(t *testing.T) {
	s, err := New(Config{Transport: &inproc.Transport{}}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	info, ok := runtime.SerializerInfoForMediaType(configscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeYAML)
	if !ok {
		t.Fatal("the scheduler's codecs have no YAML")
	}
	b, err := runtime.Encode(configscheme.Codecs.EncoderForVersion(info.Serializer, configv1.SchemeGroupVersion), s.component)
	if err != nil {
		t.Fatal(err)
	}
	testkit.Golden(t, "config.yaml", string(b)+"# pods without a place are tried again after "+s.unschedulable.String()+"\n")
}
