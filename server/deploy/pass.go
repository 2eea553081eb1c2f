package deploy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
)

// pass brings the cluster to what the files say. It reports whether something is
// left to be tried again.
func (d *Deployer) pass(ctx context.Context) (again bool) {
	addons, err := d.cfg.readAddons()
	if err != nil {
		err = fmt.Errorf("read addons: %w", err)
	} else if d.memory == nil {
		d.memory, err = load(ctx, d.cluster.objects, d.cfg.Memory)
	}
	if err != nil {
		d.report(ctx, everything, err)
		return true
	}
	user := d.readUser()
	again = d.reportHoles(ctx, user.holes)
	files := contents{files: append(addons, user.files...), holes: user.holes}
	todo, left := d.pending(files.files), d.memory.left(files)
	if len(todo)+len(left) == 0 {
		d.report(ctx, everything, nil)
		return again
	}
	for _, f := range todo {
		if f.err == nil {
			d.memory.add(f)
		}
	}
	err = d.memory.save(ctx, d.cluster.objects)
	if err == nil {
		failed := d.work(ctx, files, todo, left)
		again = again || failed
		err = d.memory.save(ctx, d.cluster.objects)
	}
	d.report(ctx, everything, err)
	return again || err != nil
}

// readUser reads the user's directory, which it makes when it is missing and
// nothing is remembered that was in it.
func (d *Deployer) readUser() contents {
	c := d.cfg.readUser()
	if !slices.ContainsFunc(c.holes, hole.missing) || d.memory.hasUserFiles() {
		return c
	}
	if err := os.MkdirAll(d.cfg.UserDir, 0o700); err != nil {
		return contents{holes: []hole{{dir: root, err: err}}}
	}
	return d.cfg.readUser()
}

// reportHoles names each directory that cannot be read, once. It reports whether
// to try again: for one that is missing it is enough to watch.
func (d *Deployer) reportHoles(ctx context.Context, holes []hole) (again bool) {
	now := map[string]bool{}
	for _, h := range holes {
		message := "Directory of manifests cannot be read, what was applied from it stays"
		if h.missing() {
			message = "Directory of manifests is missing, what was applied from it stays until it is made again"
		} else {
			again = true
		}
		path := h.path(d.cfg.UserDir)
		now[path] = true
		d.say(ctx, path, message, h.err)
	}
	maps.DeleteFunc(d.logged, func(path, _ string) bool { return strings.HasSuffix(path, "/") && !now[path] })
	return again
}

// pending are the files that are not applied as they are now.
func (d *Deployer) pending(files []file) []file {
	var todo []file
	for _, f := range files {
		if d.done[f.name] != f.digest || f.err != nil {
			todo = append(todo, f)
		}
	}
	return todo
}

// work applies todo and removes what left. It reports whether anything failed.
func (d *Deployer) work(ctx context.Context, files contents, todo []file, left []string) (failed bool) {
	unknown := false
	note := func(name string, err error) {
		d.report(ctx, name, err)
		failed = failed || err != nil
		unknown = unknown || meta.IsNoMatchError(err)
	}
	tallies := map[string]*tally{}
	for _, f := range todo {
		tallies[f.name] = &tally{}
		err := d.applyFile(ctx, f, tallies[f.name])
		if err != nil {
			delete(d.done, f.name)
		} else {
			d.done[f.name] = f.digest
		}
		note(f.name, err)
	}
	keep := d.wanted(files)
	for _, f := range todo {
		if d.done[f.name] == f.digest {
			note(f.name, d.prune(ctx, f.name, f.refs(), keep, tallies[f.name]))
		}
		d.tell(f.name, *tallies[f.name])
	}
	for _, name := range left {
		t := tally{}
		delete(d.done, name)
		note(name, d.prune(ctx, name, nil, keep, &t))
		d.tell(name, t)
	}
	if unknown {
		d.cluster.kinds.forget()
	}
	return failed
}

// applyFile applies every object of f, also after one that failed.
func (d *Deployer) applyFile(ctx context.Context, f file, t *tally) error {
	if f.err != nil {
		return f.err
	}
	var errs []error
	for _, o := range f.objects {
		errs = append(errs, d.cluster.apply(ctx, o, t))
	}
	return errors.Join(errs...)
}

// wanted are the places of all objects in the files, and of those that a file or
// directory had before that cannot be read.
func (d *Deployer) wanted(c contents) map[place]bool {
	var refs []ref
	for _, f := range c.files {
		if f.err == nil {
			refs = append(refs, f.refs()...)
		} else {
			refs = append(refs, d.memory.Files[f.name]...)
		}
	}
	for name, had := range d.memory.Files {
		if c.hides(name) {
			refs = append(refs, had...)
		}
	}
	keep := map[place]bool{}
	for _, r := range refs {
		if _, p, err := d.cluster.find(r); err == nil {
			keep[p] = true
		}
	}
	return keep
}

// prune removes what the file had before and nobody wants now, the last first,
// and remembers that it has only refs. Without refs the file is forgotten.
func (d *Deployer) prune(ctx context.Context, file string, refs []ref, keep map[place]bool, t *tally) error {
	var errs []error
	for _, r := range slices.Backward(d.memory.Files[file]) { // also after one that failed: it may wait for another to go
		errs = append(errs, d.cluster.remove(ctx, r, keep, t))
	}
	if err := errors.Join(errs...); err != nil {
		delete(d.done, file)
		return err
	}
	if len(refs) == 0 {
		delete(d.memory.Files, file)
	} else {
		d.memory.Files[file] = refs
	}
	return nil
}

// tell logs what was done for a file, if anything was.
func (d *Deployer) tell(file string, t tally) {
	if t == (tally{}) {
		return
	}
	d.log.Info("Manifest applied", "file", file, "created", t.created, "changed", t.changed, "removed", t.removed)
}

// addonsDone reports whether every addon is applied.
func (d *Deployer) addonsDone() bool {
	addons, err := d.cfg.readAddons()
	if err != nil || d.memory == nil {
		return false
	}
	for _, f := range addons {
		if d.done[f.name] != f.digest {
			return false
		}
	}
	for name := range d.memory.Files {
		if strings.HasPrefix(name, addonPrefix) && d.done[name] == "" {
			return false
		}
	}
	return true
}
