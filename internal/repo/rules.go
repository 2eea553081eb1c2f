package repo

import (
	"fmt"
	"go/ast"
	"iter"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/clusterd/clusterd"

// fences say that imports at or under path belong only in or under the folders listed.
var fences = []struct {
	path    string
	folders []string
	why     string
}{
	{
		path:    "k8s.io/kubernetes",
		folders: []string{"server/apiserver", "server/controllers", "server/scheduler", "agent/kubelet", "agent/proxy", "internal/upstream"},
		why:     "its packages change and have process-wide state",
	},
	{
		path:    module + "/server",
		folders: []string{".", "server"},
		why:     "only main composes the roles",
	},
	{
		path:    module + "/agent",
		folders: []string{".", "agent"},
		why:     "only main composes the roles",
	},
}

// within tells whether name is the folder or import path root or under it. The
// folder "." is the module's root alone.
func within(name, root string) bool {
	return name == root || root != "." && strings.HasPrefix(name, root+"/")
}

// imports checks the fences, tests included.
func (f file) imports() (problems []string) {
	for _, spec := range f.ast.Imports {
		name, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the parser has refused it already
		}
		for _, fence := range fences {
			inside := slices.ContainsFunc(fence.folders, func(folder string) bool { return within(f.dir(), folder) })
			if within(name, fence.path) && !inside {
				problems = append(problems, fmt.Sprintf("%s: import of %s: allowed only in %s: %s",
					f.at(spec.Pos()), name, strings.Join(fence.folders, ", "), fence.why))
			}
		}
	}
	return problems
}

// lengths checks the file and each of its functions; one inside another counts
// as part of it.
func (f file) lengths() (problems []string) {
	if n := f.line(f.ast.FileEnd - 1); n > MaxFile {
		problems = append(problems, fmt.Sprintf("%s: the file has %d lines, more than %d", f.name, n, MaxFile))
	}
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		if n := f.line(fn.End()) - f.line(fn.Pos()) + 1; n > MaxFunc {
			problems = append(problems, fmt.Sprintf("%s: %s has %d lines, more than %d", f.at(fn.Pos()), fn.Name.Name, n, MaxFunc))
		}
	}
	return problems
}

// banned are the calls that take a decision which is not the callee's.
var banned = map[string]string{
	"os.Exit":     "return an error",
	"log.Fatal":   "return an error",
	"log.Fatalf":  "return an error",
	"log.Fatalln": "return an error",
	"panic":       "return an error",
	"time.Sleep":  "wait for the event, or for the context beside a timer",
}

// calls checks that only main and tests end the process or sleep. A function
// called must or mustX may panic: its name says so where it is called.
func (f file) calls() (problems []string) {
	if f.isTest() || f.ast.Name.Name == "main" || within(f.dir(), "internal/testkit") {
		return nil
	}
	for _, d := range f.ast.Decls {
		fn, ok := d.(*ast.FuncDecl)
		must := ok && strings.HasPrefix(strings.ToLower(fn.Name.Name), "must")
		for call := range callsIn(d) {
			name := callee(call.Fun)
			if banned[name] != "" && !(must && name == "panic") {
				problems = append(problems, fmt.Sprintf("%s: %s outside main and tests: %s", f.at(call.Pos()), name, banned[name]))
			}
		}
	}
	return problems
}

func callsIn(root ast.Node) iter.Seq[*ast.CallExpr] {
	return func(yield func(*ast.CallExpr) bool) {
		for n := range ast.Preorder(root) {
			if call, ok := n.(*ast.CallExpr); ok && !yield(call) {
				return
			}
		}
	}
}

// callee returns "name" or "package.name", and nothing for anything longer.
func callee(fun ast.Expr) string {
	switch e := fun.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return x.Name + "." + e.Sel.Name
		}
	}
	return ""
}

// leftovers finds comments that say the code is not done.
func (f file) leftovers() (problems []string) {
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			for _, mark := range []string{"TODO", "FIXME", "XXX"} {
				if slices.Contains(strings.FieldsFunc(c.Text, notLetter), mark) {
					problems = append(problems, fmt.Sprintf("%s: a %s is an issue, not a comment", f.at(c.Pos()), mark))
				}
			}
		}
	}
	return problems
}

func notLetter(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }

// comments checks that every package says what it is: in one of its files, or in
// a test file where there are no others.
func comments(all []file) (problems []string) {
	packages := map[string][]file{}
	for _, f := range all {
		packages[f.dir()] = append(packages[f.dir()], f)
	}
	for dir, files := range packages {
		if !slices.ContainsFunc(files, func(f file) bool { return !f.isTest() }) {
			problems = append(problems, undocumented(dir, files)...)
			continue
		}
		files = slices.DeleteFunc(files, file.isTest)
		problems = append(problems, undocumented(dir, files)...)
	}
	slices.Sort(problems)
	return problems
}

// undocumented wants a comment that begins as godoc expects. A program's, and
// that of a folder with nothing but tests, may begin in any way.
func undocumented(dir string, files []file) []string {
	for _, f := range files {
		text := f.ast.Doc.Text()
		free := f.ast.Name.Name == "main" || f.isTest()
		if text != "" && (free || strings.HasPrefix(text, "Package "+f.ast.Name.Name+" ")) {
			return nil
		}
	}
	name := files[0].ast.Name.Name
	if name == "main" {
		return []string{fmt.Sprintf("%s: the program has no comment before its package clause", dir)}
	}
	return []string{fmt.Sprintf("%s: package %s has no comment that begins with %q", dir, name, "Package "+name)}
}
