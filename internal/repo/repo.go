// Package repo holds the rules that the source of this module keeps, as code.
//
// Its test reads every Go file of the module with the parser alone, so it takes
// about a second and needs nothing compiled. The rules are about what a compiler
// lets pass and readers pay for: who imports whom, missing package comments,
// and functions and files too long to be read in one go. Nothing imports it.
package repo

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
)

// The longest a reader should have to bear, in lines.
const (
	MaxFunc = 80
	MaxFile = 400
)

// file is one parsed Go file.
type file struct {
	name string // relative to the module root, with slashes
	set  *token.FileSet
	ast  *ast.File
}

func (f file) dir() string { return path.Dir(f.name) }

func (f file) isTest() bool { return strings.HasSuffix(f.name, "_test.go") }

// at gives the place of p the way compilers do.
func (f file) at(p token.Pos) string {
	return fmt.Sprintf("%s:%d", f.name, f.line(p))
}

func (f file) line(p token.Pos) int { return f.set.PositionFor(p, false).Line }

// Check returns one line for each place in the module rooted at root that breaks
// a rule, and how many files it has read.
func Check(root fs.FS) (problems []string, files int, err error) {
	all, err := load(root)
	if err != nil {
		return nil, 0, err
	}
	for _, f := range all {
		if !ast.IsGenerated(f.ast) {
			problems = append(problems, f.lengths()...)
			problems = append(problems, f.calls()...)
			problems = append(problems, f.leftovers()...)
		}
		problems = append(problems, f.imports()...)
	}
	return append(problems, comments(all)...), len(all), nil
}

// load parses every Go file of the module. Modules inside it are not part of it,
// and neither are the directories that the go command leaves out.
func load(root fs.FS) ([]file, error) {
	var all []file
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && foreign(root, name):
			return filepath.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		f, err := parse(root, name)
		all = append(all, f)
		return err
	})
	return all, err
}

func foreign(root fs.FS, dir string) bool {
	base := path.Base(dir)
	if base == "testdata" || base == "vendor" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := fs.Stat(root, path.Join(dir, "go.mod"))
	return err == nil
}

func parse(root fs.FS, name string) (file, error) {
	data, err := fs.ReadFile(root, name)
	if err != nil {
		return file{}, fmt.Errorf("read %s: %w", name, err)
	}
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, name, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return file{}, fmt.Errorf("parse %s: %w", name, err)
	}
	return file{name: name, set: set, ast: tree}, nil
}
