package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/datadir"
)

// Image is an image of the node. The size is that of its content in bytes; pinned images are never removed to make room.
type Image struct {
	Name   string
	Digest string
	Size   int64
	Pinned bool
}

// Images is what the images commands do with the node's containerd, which listens on socket.
type Images struct {
	// DataDir is the data directory when the command line names none.
	DataDir func() string
	// Import loads the images of a tar file, which may be compressed, and returns them.
	Import func(ctx context.Context, socket, file string) ([]Image, error)
	// List returns all images in the order in which they are printed.
	List func(ctx context.Context, socket string) ([]Image, error)
}

// ImagesCommand has a command below it for each of the functions in i.
func ImagesCommand(i Images) *cli.Command {
	return &cli.Command{
		Name:        "images",
		Usage:       "work with the container images of this node",
		UsageText:   "clusterd images COMMAND",
		Description: "Needs a running clusterd server on this machine. Files in agent/images in the data directory are imported by it at start.",
		Subcommands: []*cli.Command{
			{
				Name:        "import",
				Usage:       "load images from tar files",
				ArgsUsage:   "FILE...",
				Description: "Loads OCI or Docker archives, also compressed with gzip or zstd, and keeps their images from being removed.",
				Flags:       []cli.Flag{dataDirFlag()},
				Action:      i.importFiles,
			},
			{
				Name:        "list",
				Aliases:     []string{"ls"},
				Usage:       "list the images",
				Description: "Prints the name, the digest and the size of each image, and whether it is kept from being removed.",
				Flags: []cli.Flag{
					dataDirFlag(),
					&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print the names only"},
				},
				Action: i.list,
			},
		},
	}
}

func dataDirFlag() cli.Flag {
	return &cli.StringFlag{Name: "data-dir", Aliases: []string{"d"}, TakesFile: true, DefaultText: "as for clusterd server",
		Usage: "`DIRECTORY` of the running clusterd"}
}

// socket finds out early that nothing runs, since dialling would only say so after several tries.
func (i Images) socket(c *cli.Context) (string, error) {
	root := c.String("data-dir")
	if root == "" {
		root = i.DataDir()
	}
	dir, err := datadir.New(root)
	if err != nil {
		return "", err
	}
	socket := dir.ContainerdSocket()
	if _, err := os.Stat(socket); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("no node runs with the data directory %s: start clusterd server, or give its --data-dir (there is no %s)", dir.Root(), socket)
	}
	return socket, nil
}

func (i Images) importFiles(c *cli.Context) error {
	if c.NArg() == 0 {
		return UsageErrorf(c, "import needs the name of a file")
	}
	socket, err := i.socket(c)
	if err != nil {
		return err
	}
	for _, file := range c.Args().Slice() {
		imported, err := i.Import(c.Context, socket, file)
		if err != nil {
			return fmt.Errorf("import %s: %w", file, err)
		}
		for _, image := range imported {
			fmt.Fprintln(c.App.Writer, image.Name)
		}
	}
	return nil
}

func (i Images) list(c *cli.Context) error {
	if err := NoArguments(c); err != nil {
		return err
	}
	socket, err := i.socket(c)
	if err != nil {
		return err
	}
	all, err := i.List(c.Context, socket)
	if err != nil {
		return err
	}
	return printImages(c.App.Writer, all, c.Bool("quiet"))
}

func printImages(w io.Writer, all []Image, quiet bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if !quiet {
		fmt.Fprintln(t, "IMAGE\tDIGEST\tSIZE\tPINNED")
	}
	for _, image := range all {
		if quiet {
			fmt.Fprintln(t, image.Name)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", image.Name, image.Digest, mebibytes(image.Size), yesOrNo(image.Pinned))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print images: %w", err)
	}
	return nil
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

func yesOrNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
