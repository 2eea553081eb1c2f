// Package deploy keeps the objects of manifest files in the cluster: those of
// the addons inside the executable, and those in the user's directory.
//
// What it promises:
//   - What a file says is applied (server-side, as field manager "clusterd"),
//     at every start and whenever the file changes. The directory is watched,
//     not polled.
//   - What has left a file, or whose file has left, is deleted, also when that
//     happened while nobody ran. What was applied is remembered in the ConfigMap
//     kube-system/clusterd-manifests, which is written before anything else;
//     with several servers each has one of its own, clusterd-manifests-NAME.
//   - A file that cannot be read or applied never leads to a deletion. It is
//     tried again, ever more slowly, and named in the log once for each new error.
//   - The same holds for a directory that cannot be read, and for the user's
//     directory when it is gone after something was applied from it: what was
//     applied stays until somebody makes it again. An empty one removes it.
//   - Nothing that is wrong with the user's files or directories, or with
//     watching them, keeps the addons from being applied.
//   - An object is forgotten when it is gone, or when its kind certainly is; not
//     while the API of its kind only does not answer.
//   - Order does not matter: a custom resource waits for its definition, and an
//     object for its namespace.
//
// ${NAME} is replaced in the addons' files only; in the user's it is just text.
package deploy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const (
	// settle is how long changed files are left alone, to be written completely.
	settle = 300 * time.Millisecond
	// The first tries follow each other quickly, because at a first start the
	// namespaces are still being made.
	firstRetry, lastRetry = 100 * time.Millisecond, 5 * time.Minute
)

// Config says what to deploy and where.
type Config struct {
	// RESTConfig reaches the API with the right to change anything, required.
	RESTConfig *rest.Config
	// Embedded holds the addons as ADDON/NAME.yaml. Nil is none.
	Embedded fs.FS
	// UserDir is the user's directory; empty is none. It is made when missing,
	// unless something is remembered that was in it.
	UserDir string
	// Disabled names addons to leave out, and to remove if they are there.
	Disabled []string
	// Memory is part of the name of the ConfigMap that remembers what was applied, where several directories are; optional.
	Memory string
	// Vars replaces ${NAME} in the addons' files. A name without value is an error.
	Vars map[string]string
}

// Deployer applies manifests, a lifecycle component.
type Deployer struct {
	cfg     Config
	log     *slog.Logger
	cluster *cluster
	memory  *inventory        // nil until it was read from the cluster
	done    map[string]string // file: digest of what is applied
	logged  map[string]string // file, directory or other cause: error that was logged last
}

// New checks c. It does no I/O.
func New(c Config, log *slog.Logger) (*Deployer, error) {
	if c.RESTConfig == nil {
		return nil, errors.New("deploy: the API is required")
	}
	config := rest.CopyConfig(c.RESTConfig)
	config.ContentType, config.AcceptContentTypes = "", ""
	config.WarningHandler = rest.NoWarnings{}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client for manifests: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make discovery client for manifests: %w", err)
	}
	return &Deployer{
		cfg:     c,
		log:     log,
		cluster: &cluster{objects: objects, kinds: newMapper(kinds)},
		done:    map[string]string{},
		logged:  map[string]string{},
	}, nil
}

// Name is the component's name in logs and errors.
func (d *Deployer) Name() string { return "deploy" }

// Run calls ready when the addons are applied, and goes on until ctx ends. The
// user's files do not hold ready up.
func (d *Deployer) Run(ctx context.Context, ready func()) error {
	dir := newDirWatch(d.cfg.UserDir)
	defer dir.close()
	told := false
	for backoff := newBackoff(); ; {
		var retry <-chan time.Time
		err := dir.follow()
		d.report(ctx, watching, err)
		if again := d.pass(ctx); again || err != nil {
			retry = time.After(backoff.Step())
		}
		if !told && d.addonsDone() {
			told = true
			ready()
		}
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
		case <-dir.changes:
			backoff = newBackoff()
			dir.settle(ctx)
		}
	}
}

// The causes of errors that are not about one file or directory.
const everything, watching = "*", "(watch)"

// messages are what is logged of a failure of something else than a file.
var messages = map[string]string{
	everything: "Manifests are not applied, it will be tried again",
	watching:   "Changes of manifests may be missed, watching them will be tried again",
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: firstRetry, Factor: 1.5, Steps: 30, Cap: lastRetry}
}

// report logs a failure of a file, or of what messages has, once, and forgets it
// when err is nil.
func (d *Deployer) report(ctx context.Context, file string, err error) {
	message, ok := messages[file]
	if !ok {
		message = "Manifest is not applied, it will be tried again"
	}
	d.say(ctx, file, message, err)
}

func (d *Deployer) say(ctx context.Context, what, message string, err error) {
	if err == nil {
		delete(d.logged, what)
		return
	}
	text := oneLine(err)
	if ctx.Err() != nil || d.logged[what] == text {
		return
	}
	d.logged[what] = text
	d.log.Warn(message, "file", what, "error", text)
}
