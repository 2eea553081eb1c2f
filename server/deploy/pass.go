package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
)

// everything stands for the name of a file in errors that are not about one.
const everything = "*"

// pass brings the cluster to what the files say. It reports whether something is
// left to be tried again.
func (d *Deployer) pass(ctx context.Context) (again bool) {
	files, err := d.read()
	if err == nil && d.memory == nil {
		d.memory, err = load(ctx, d.cluster.objects)
	}
	if err != nil {
		d.report(ctx, everything, err)
		return true
	}
	todo, left := d.pending(files), d.memory.left(files)
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
		again = d.work(ctx, files, todo, left)
		err = d.memory.save(ctx, d.cluster.objects)
	}
	d.report(ctx, everything, err)
	return again || err != nil
}

// read reads all files, the addons first. Its errors are about directories.
func (d *Deployer) read() ([]file, error) {
	addons, err := d.cfg.readAddons()
	if err != nil {
		return nil, fmt.Errorf("read addons: %w", err)
	}
	user, err := d.cfg.readUser()
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	return append(addons, user...), nil
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
func (d *Deployer) work(ctx context.Context, files, todo []file, left []string) (failed bool) {
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

// wanted are the places of all objects in the files, and of those a file that
// cannot be read had before.
func (d *Deployer) wanted(files []file) map[place]bool {
	keep := map[place]bool{}
	for _, f := range files {
		refs := f.refs()
		if f.err != nil {
			refs = d.memory.Files[f.name]
		}
		for _, r := range refs {
			if _, p, err := d.cluster.locate(r); err == nil {
				keep[p] = true
			}
		}
	}
	return keep
}

// prune removes what the file had before and nobody wants now, the last first,
// and remembers that it has only refs. Without refs the file is forgotten.
func (d *Deployer) prune(ctx context.Context, file string, refs []ref, keep map[place]bool, t *tally) error {
	had := d.memory.Files[file]
	for i := len(had) - 1; i >= 0; i-- {
		if err := d.cluster.remove(ctx, had[i], keep, t); err != nil {
			delete(d.done, file)
			return err
		}
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
