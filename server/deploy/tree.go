package deploy

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
)

// root is the name of a tree's own directory.
const root = "."

// contents are the files of a tree.
type contents struct {
	files []file
	holes []hole
}

// hides reports whether a file that is not among c's may be there all the same,
// in a directory that cannot be read.
func (c contents) hides(name string) bool {
	for _, f := range c.files {
		if f.name == name {
			return false
		}
	}
	for _, h := range c.holes {
		if !strings.HasPrefix(name, addonPrefix) && (h.dir == root || strings.HasPrefix(name, h.dir+"/")) {
			return true
		}
	}
	return false
}

// hole is a directory that cannot be read, or not completely.
type hole struct {
	dir string // its path below the tree's own directory, or root
	err error
}

// missing reports whether the tree itself is not there.
func (h hole) missing() bool { return h.dir == root && errors.Is(h.err, fs.ErrNotExist) }

// path is where the hole is in the tree at base, with a slash at the end, unlike
// any file's name.
func (h hole) path(base string) string {
	return filepath.Join(base, h.dir) + "/"
}

// readTree makes a file of every manifest in tree, in order of names. A file
// that cannot be read is there with its error; one that just left is not, and
// neither is a directory that did.
func readTree(tree fs.FS, read func(string, []byte) file, skip func(string) bool) contents {
	var c contents
	_ = fs.WalkDir(tree, root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err == nil && name == root && !entry.IsDir():
			err = errors.New("is not a directory")
			fallthrough
		case err != nil:
			if e, ok := errors.AsType[*fs.PathError](err); ok {
				err = e.Err // its path is below the tree, and does not say where that is
			}
			if name == root || !errors.Is(err, fs.ErrNotExist) {
				c.holes = append(c.holes, hole{dir: name, err: err})
			}
		case !entry.IsDir() && isManifest(name) && !skip(name):
			c.readFile(tree, name, read)
		}
		return nil
	})
	return c
}

func (c *contents) readFile(tree fs.FS, name string, read func(string, []byte) file) {
	text, err := fs.ReadFile(tree, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		f := read(name, nil)
		f.err = err
		c.files = append(c.files, f)
	default:
		c.files = append(c.files, read(name, text))
	}
}
