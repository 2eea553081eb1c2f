// Command pack makes the parts of the embedded payload for scripts/build.
//
//	pack image OUT.tar NAME BINARY        an image archive with one executable, /NAME-of-BINARY, as its entry point
//	pack payload DIR PATH[:MODE]=FILE...  the payload in DIR from files, each at PATH (mode 0755 unless given)
//
// Both are deterministic: the same input gives the same bytes.
package main

import (
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"github.com/clusterd/clusterd/internal/bundle/archive"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 4 && args[0] == "image":
		return writeImage(args[1], args[2], args[3])
	case len(args) > 2 && args[0] == "payload":
		files, err := parseFiles(args[2:])
		if err != nil {
			return err
		}
		return archive.Pack(args[1], files)
	}
	return fmt.Errorf("usage: pack image OUT.tar NAME BINARY | pack payload DIR PATH[:MODE]=FILE...")
}

func parseFiles(args []string) ([]archive.File, error) {
	files := make([]archive.File, 0, len(args))
	for _, arg := range args {
		target, source, ok := strings.Cut(arg, "=")
		if !ok {
			return nil, fmt.Errorf("argument %q is not PATH[:MODE]=FILE", arg)
		}
		path, mode, ok := strings.Cut(target, ":")
		if !ok {
			mode = "755"
		}
		bits, err := strconv.ParseUint(mode, 8, 9)
		if err != nil {
			return nil, fmt.Errorf("argument %q: mode: %w", arg, err)
		}
		files = append(files, archive.File{Path: path, Mode: fs.FileMode(bits), Source: source})
	}
	return files, nil
}
