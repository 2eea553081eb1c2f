package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/datastore/endpoint"
	"github.com/clusterd/clusterd/internal/datastore/migrate"
)

func datastoreCommand() *clilib.Command {
	return &clilib.Command{
		Name:      "datastore",
		Usage:     "work with the datastore",
		UsageText: "clusterd datastore COMMAND",
		Subcommands: []*clilib.Command{{
			Name:  "migrate",
			Usage: "copy the cluster's state to another datastore",
			Description: "Copies all keys of a datastore to an empty one of the same or another kind, reads them again and compares. Servers of\n" +
				"both must be stopped. An interrupted copy can be run again.\n\n" +
				"URLs are those of the server's --datastore-endpoint. sqlite:// without a path is the file in the data directory; a file\n" +
				"of kine or k3s can be read as well, as sqlite:///var/lib/rancher/k3s/server/db/state.db.",
			Flags: append([]clilib.Flag{
				&clilib.StringFlag{Name: "from", Usage: "`URL` of the datastore to read"},
				&clilib.StringFlag{Name: "to", Usage: "`URL` of the datastore to write"},
				&clilib.StringFlag{Name: "data-dir", Aliases: []string{"d"}, TakesFile: true, DefaultText: "as for clusterd server",
					Usage: "`DIRECTORY` that sqlite:// without a path is in"},
			}, append(tlsFlags("from", "source"), tlsFlags("to", "target")...)...),
			Action: migrateDatastore,
		}},
	}
}

func tlsFlags(side, which string) []clilib.Flag {
	return []clilib.Flag{
		&clilib.StringFlag{Name: side + "-cafile", TakesFile: true, Usage: "`FILE` with the authorities that sign the " + which + "'s certificate"},
		&clilib.StringFlag{Name: side + "-certfile", TakesFile: true, Usage: "`FILE` with the certificate that is shown to the " + which},
		&clilib.StringFlag{Name: side + "-keyfile", TakesFile: true, Usage: "`FILE` with the key of that certificate"},
	}
}

// migrateDatastore holds the data directory while a file in it is read or written, as a server would.
func migrateDatastore(c *clilib.Context) error {
	if err := cli.NoArguments(c); err != nil {
		return err
	}
	root := c.String("data-dir")
	if root == "" {
		root = setting("data-dir")()
	}
	dir, err := datadir.New(root)
	if err != nil {
		return err
	}
	from, err := side(c, "from", dir)
	if err != nil {
		return err
	}
	to, err := side(c, "to", dir)
	if err != nil {
		return err
	}
	for _, e := range []endpoint.Endpoint{from, to} {
		if e.Path == dir.DB() {
			release, err := dir.Lock()
			if err != nil {
				return err
			}
			defer release() //nolint:errcheck // the process ends
			break
		}
	}
	ctx, release := cli.Signals(c.Context, exitNow)
	defer release()
	progress := newProgress(c.App.ErrWriter)
	began := time.Now()
	report, err := migrate.Run(ctx, migrate.Config{From: from, To: to, Progress: progress.show, Log: cli.NewLogger(os.Stderr, false, "text")})
	progress.clear()
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted; run it again to begin anew: %w", err)
		}
		return err
	}
	describe(c.App.Writer, from, to, report, time.Since(began))
	return nil
}

// side reads the URL and the files of one side. Its errors are of usage and show no password.
func side(c *clilib.Context, name string, dir datadir.Dir) (endpoint.Endpoint, error) {
	if c.String(name) == "" {
		return endpoint.Endpoint{}, cli.UsageErrorf(c, "--%s is missing: it is the URL of a datastore, sqlite:// for the file in the data directory", name)
	}
	e, err := endpoint.Parse(c.String(name), endpoint.Files{
		CA: c.String(name + "-cafile"), Cert: c.String(name + "-certfile"), Key: c.String(name + "-keyfile"),
	})
	if err != nil {
		return e, cli.UsageErrorf(c, "--%s: %v", name, err)
	}
	if e.Local() && e.Path == "" {
		return endpoint.Parse("sqlite://"+dir.DB(), endpoint.Files{})
	}
	return e, nil
}

func describe(w io.Writer, from, to endpoint.Endpoint, r migrate.Report, took time.Duration) {
	fmt.Fprintf(w, "copied and compared %d keys (%.1f MB) from %s to %s in %.1f s\n", r.Keys, float64(r.Bytes)/1e6, from, to, took.Seconds())
	if !r.Kept {
		fmt.Fprintf(w, "%s gives revisions of its own: restart what watches the API and was not stopped, such as controllers in pods\n", to.Kind)
	}
	if r.Encrypted > 0 {
		fmt.Fprintf(w, "%d values are encrypted by the API server: it needs the same --kube-apiserver-arg=encryption-provider-config=FILE as before\n", r.Encrypted)
	}
}

// progress is a line on a terminal that is written over again; elsewhere it is nothing.
type progress struct {
	w     io.Writer
	last  time.Time
	shown bool
}

func newProgress(w io.Writer) *progress {
	f, ok := w.(*os.File)
	if !ok {
		return &progress{w: io.Discard}
	}
	if st, err := f.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 || filepath.Base(f.Name()) == "null" {
		return &progress{w: io.Discard}
	}
	return &progress{w: w}
}

// redraw is how often the line changes.
const redraw = 100 * time.Millisecond

func (p *progress) show(done, all int64) {
	if time.Since(p.last) < redraw {
		return
	}
	p.last, p.shown = time.Now(), true
	fmt.Fprintf(p.w, "\r%d of %d keys\x1b[K", done, all)
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
