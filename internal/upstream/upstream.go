// Package upstream is the quarantine for what Kubernetes' packages keep process-wide: feature gates, klog, the default
// warning handler, exit functions and the environment. Setup sets each of them exactly once, before any component is made;
// nothing else in the program touches them.
package upstream

import (
	"fmt"
	"log/slog"
	"os"
	"sort"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	_ "k8s.io/kubernetes/pkg/features" // registers the gates that ourGates names
)

// Config is what the process-wide state is made from.
type Config struct {
	Gates     map[string]bool     // feature gates, over upstream's defaults and ours
	Limited   bool                // the host does not let us raise limits or write all kernel settings
	Verbosity int                 // klog's -v
	Log       *slog.Logger        // where klog's lines go
	Exit      func(reason string) // called where upstream would end the process; must not return
}

// ourGates turn off what costs more than it gives to a server without peers on a small machine.
var ourGates = map[string]bool{
	// The server's identity lease, renewed every 10 seconds, and the proxying of requests to servers of another version.
	"UnknownVersionInteroperabilityProxy": false,
	"APIServerIdentity":                   false,
	// Reads all objects back every 5 minutes to compare them with the cache.
	"DetectCacheInconsistency": false,
	// Lists the keys of each resource every minute to weigh requests by the size of objects.
	"SizeBasedListCostEstimate": false,
	// Keeps old versions of each cache, for lists in pages.
	"ListFromCacheSnapshot": false,
	// Decodes watch events on ten goroutines a resource.
	"ConcurrentWatchObjectDecode": false,
}

// Setup sets the process-wide state. Call it once, before making any component.
func Setup(c Config) error {
	// Upstream's API server and kubelet would each report READY to systemd, and the kubelet would feed the watchdog. Both are
	// for the whole program to say.
	for _, v := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if err := os.Unsetenv(v); err != nil {
			return fmt.Errorf("unset %s: %w", v, err)
		}
	}
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	logsapi.ReapplyHandling = logsapi.ReapplyHandlingIgnoreUnchanged
	handler := quieten(c.Log.Handler())
	klog.SetSlogLogger(slog.New(handler))
	takeLogrus(slog.New(handler), c.Exit)
	var level klog.Level
	if err := level.Set(strconv.Itoa(c.Verbosity)); err != nil {
		return fmt.Errorf("set klog verbosity %d: %w", c.Verbosity, err)
	}
	klog.OsExit = func(code int) { c.Exit(fmt.Sprintf("a Kubernetes component asked to exit with status %d", code)) }
	return setGates(c)
}

// setGates sets our gates and the user's, and fixes the version that the components emulate.
func setGates(c Config) error {
	r := compatibility.DefaultComponentGlobalsRegistry
	r.ComponentGlobalsOrRegister(basecompatibility.DefaultKubeComponent, compatibility.DefaultBuildEffectiveVersion(), utilfeature.DefaultMutableFeatureGate)
	if err := r.Set(); err != nil {
		return fmt.Errorf("set the emulated version: %w", err)
	}
	// With this gate the kubelet tolerates that kernel settings cannot be written; it was made for user namespaces.
	limited := map[string]bool{"KubeletInUserNamespace": c.Limited}
	for _, m := range []map[string]bool{ourGates, limited, c.Gates} {
		if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(m); err != nil {
			return fmt.Errorf("set feature gates %s: %w", gateList(m), err)
		}
	}
	return nil
}

func gateList(m map[string]bool) string {
	var s []string
	for k, v := range m {
		s = append(s, fmt.Sprintf("%s=%t", k, v))
	}
	sort.Strings(s)
	return strings.Join(s, ",")
}
