//go:build e2e

package e2e

import (
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	criapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/testkit/image"
)

// testImages runs the images that lay in the images directory at the start, and one that is imported by hand.
func (s *suite) testImages(t *testing.T) {
	for _, row := range []struct{ pod, image string }{
		{"image-gz", "clusterd.test/gz:1"},
		{"image-zst", "clusterd.test/zst:1"},
	} {
		s.runs(t, imagePod(row.pod, row.image, corev1.PullNever))
	}
	const name = "clusterd.test/by-hand:1"
	put(t, s.Cluster, "/tmp/by-hand.tar", image.Bytes(t, variant(t, name)))
	for range 2 { // the second import finds everything there
		if out, err := s.Clusterd(t.Context(), nil, "images", "import", "/tmp/by-hand.tar"); err != nil {
			t.Fatal(out, err)
		}
	}
	s.runs(t, imagePod("image-by-hand", name, corev1.PullNever))
	list, err := s.Clusterd(t.Context(), nil, "images", "list")
	if err != nil {
		t.Fatal(err)
	}
	wants(t, list, toolsImage, "clusterd.test/gz:1", "clusterd.test/zst:1", name, "pause")
	pinned := s.pinned(t)
	for _, image := range []string{toolsImage, "clusterd.test/gz:1", "clusterd.test/zst:1", name} {
		if !pinned[image] {
			t.Errorf("the kubelet may remove the imported image %s to make room; there are %v", image, pinned)
		}
	}
	put(t, s.Cluster, "/tmp/broken.tar", []byte("this is no archive"))
	if out, err := s.Clusterd(t.Context(), nil, "images", "import", "/tmp/broken.tar"); err == nil {
		t.Errorf("a broken archive was imported: %s", out)
	}
}

// pinned asks the runtime, as the kubelet does, which images it has, and whether each is kept when there is no room.
func (s *suite) pinned(t *testing.T) map[string]bool {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+s.Node.Path(dirs.ContainerdSocket()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answer, err := criapi.NewImageServiceClient(conn).ListImages(within(t, podTimeout), &criapi.ListImagesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	pinned := map[string]bool{}
	for _, i := range answer.Images {
		for _, name := range i.RepoTags {
			pinned[name] = i.Pinned
		}
	}
	return pinned
}

func imagePod(name, ref string, pull corev1.PullPolicy) *corev1.Pod {
	pod := newPod(name, idle())
	pod.Spec.Containers[0].Image, pod.Spec.Containers[0].ImagePullPolicy = ref, pull
	return pod
}

const registries = `mirrors:
  registry.example:
    endpoint: ["http://127.0.0.1:18099"]
    rewrite: {"^team/(.*)": "copies/$1"}
`

// testRegistries pulls from a mirror that is configured while the server runs, after a pull without it has failed. Each
// pull is of a pod of its own, since the kubelet waits longer and longer before it tries again.
func (s *suite) testRegistries(t *testing.T) {
	registry := image.NewRegistry(variant(t, "any/copies/thing:1"))
	serve(t, s.Node.Network(), "127.0.0.1:18099", registry)
	pull := func(pod, ref string, outcome func(*corev1.Pod) string) {
		t.Helper()
		s.create(t, imagePod(pod, "registry.example/"+ref, corev1.PullAlways))
		s.pod(t, pod, outcome)
	}
	// Names in .example cannot be resolved, so nothing is asked of anybody.
	pull("pull-unknown", "team/thing:1", pullFails)
	put(t, s.Cluster, datadir.Registries, []byte(registries))
	pull("pull-mirrored", "team/thing:1", isReady)
	if len(registry.Served()) == 0 {
		t.Error("the pod runs, but not by the mirror")
	}
	if pinned, there := s.pinned(t)["registry.example/team/thing:1"]; pinned || !there {
		t.Errorf("the pulled image is there: %t, and kept for ever: %t", there, pinned)
	}
	pull("pull-missing", "team/other:1", pullFails)
}

func pullFails(p *corev1.Pod) string {
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil && (w.Reason == "ErrImagePull" || w.Reason == "ImagePullBackOff") {
			return ""
		}
	}
	return "has not failed to pull"
}

// status fetches an https URL of the node without any credentials.
func (s *suite) status(t *testing.T, url string) int {
	t.Helper()
	client := &http.Client{Transport: s.insecure()}
	res, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode
}
