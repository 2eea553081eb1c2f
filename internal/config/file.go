package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// entry is one key of a file with its values.
type entry struct {
	key    string
	items  []string
	append bool // the key ended in +
	line   int
}

// readFiles reads the main file and the directory beside it. Only the main file that was not asked for may be missing.
func (v *Values) readFiles(p *Problems) {
	if _, ok := v.options[FileFlag]; !ok {
		return
	}
	main := v.String(FileFlag)
	fromFiles := map[string]value{}
	if !v.readFile(main, fromFiles, p) && v.IsSet(FileFlag) {
		p.Addf("%s: no such file: %s", v.Place(FileFlag), main)
	}
	more, err := filepath.Glob(filepath.Join(main+".d", "*.yaml"))
	if err != nil {
		p.Addf("%s: %w", v.Place(FileFlag), err)
	}
	slices.Sort(more)
	for _, path := range more {
		v.readFile(path, fromFiles, p)
	}
	for name, val := range fromFiles {
		if !v.IsSet(name) {
			v.set[name] = val
		}
	}
}

// readFile adds the file's values to into; false means that there is no such file.
func (v *Values) readFile(path string, into map[string]value, p *Problems) bool {
	entries, err := parseFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	p.Add(err)
	seen := map[string]int{}
	for _, e := range entries {
		place := fmt.Sprintf("%s:%d: %s", path, e.line, e.key)
		if first := seen[e.key]; first > 0 {
			p.Addf("%s: is already set in line %d", place, first)
			continue
		}
		seen[e.key] = e.line
		v.addEntry(e, place, into, p)
	}
	return true
}

func (v *Values) addEntry(e entry, place string, into map[string]value, p *Problems) {
	o, known := v.options[e.key]
	switch {
	case e.key == FileFlag:
		p.Addf("%s: can only be set on the command line or in the environment", place)
	case !known:
		p.Addf("%s: unknown key, the nearest known one is %s", place, Nearest(e.key, v.names()))
	case e.append && o.kind != list:
		p.Addf("%s: takes one value, so nothing can be added with +", place)
	default:
		if err := o.check(e.items); err != nil {
			p.Addf("%s: %w", place, err)
			return
		}
		if e.append {
			e.items = append(slices.Clone(into[e.key].items), e.items...)
		}
		into[e.key] = value{items: e.items, place: place}
	}
}

// parseFile reads the YAML mapping in path. What could be read comes with the error.
func parseFile(path string) ([]entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer f.Close()
	var doc yaml.Node
	decoder := yaml.NewDecoder(f)
	if err := decoder.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := decoder.Decode(&yaml.Node{}); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: holds more than one document", path)
	}
	return readMapping(path, doc.Content[0])
}

func readMapping(path string, n *yaml.Node) ([]entry, error) {
	if n.Tag == "!!null" {
		return nil, nil
	}
	if n.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s:%d: is not a mapping of option names to values", path, n.Line)
	}
	var entries []entry
	var problems []error
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		name, plus := strings.CutSuffix(key.Value, "+")
		items, err := readItems(n.Content[i+1])
		if err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %s: %w", path, key.Line, key.Value, err))
			continue
		}
		if items != nil {
			entries = append(entries, entry{key: name, items: items, append: plus, line: key.Line})
		}
	}
	return entries, Join(problems...)
}

// readItems takes a scalar or a list of scalars as it is written, so that 0600 stays 0600; null is nil, an unset option.
func readItems(n *yaml.Node) ([]string, error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag == "!!null" {
			return nil, nil
		}
		return []string{n.Value}, nil
	case yaml.SequenceNode:
		return readSequence(n)
	}
	return nil, errors.New("takes a value or a list of values, not a mapping")
}

func readSequence(n *yaml.Node) ([]string, error) {
	items := make([]string, 0, len(n.Content))
	for _, child := range n.Content {
		if child.Kind == yaml.AliasNode {
			child = child.Alias
		}
		if child.Kind != yaml.ScalarNode {
			return nil, fmt.Errorf("entry %d of the list is not a plain value", len(items)+1)
		}
		items = append(items, child.Value)
	}
	return items, nil
}
