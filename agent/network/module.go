package network

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// moduleCompressed is MODULE_INIT_COMPRESSED_FILE (Linux 5.17) of linux/module.h.
const moduleCompressed = 4

// moduleRoot is where the modules of the running kernel are.
func moduleRoot() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return filepath.Join("/lib/modules", unix.ByteSliceToString(u.Release[:]))
}

// loadModule loads a kernel module and what it needs, as modprobe does.
func loadModule(root, name string) error {
	files, err := moduleFiles(root, name)
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := initModule(filepath.Join(root, file)); err != nil {
			return fmt.Errorf("load kernel module %s: %w", file, err)
		}
	}
	return nil
}

func initModule(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	flags := 0
	if path.Ext(file) != ".ko" {
		flags = moduleCompressed
	}
	if err := unix.FinitModule(int(f.Fd()), "", flags); err != nil && err != unix.EEXIST {
		return err
	}
	return nil
}

// moduleFiles returns the files to load for name, in order, from modules.dep. It
// has a line "file: need need" for each module, the last need first to load.
func moduleFiles(root, name string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(root, "modules.dep"))
	if err != nil {
		return nil, fmt.Errorf("find kernel module %s: %w", name, err)
	}
	for line := range strings.Lines(string(data)) {
		file, needs, _ := strings.Cut(strings.TrimSpace(line), ":")
		if base, _, _ := strings.Cut(path.Base(file), ".ko"); strings.ReplaceAll(base, "-", "_") != name {
			continue
		}
		files := []string{file}
		for _, need := range strings.Fields(needs) {
			files = append([]string{need}, files...)
		}
		return files, nil
	}
	return nil, fmt.Errorf("find kernel module %s: not in %s/modules.dep", name, root)
}
