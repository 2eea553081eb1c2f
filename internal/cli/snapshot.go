package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/snapshot"
)

// Snapshots is what the snapshot commands do; each function reads Flags from the context.
type Snapshots struct {
	// Flags are the common flags of all commands.
	Flags func() []cli.Flag
	// Save makes a snapshot and returns it, once for each place. Without a name it finds one.
	Save func(c *cli.Context, name string) ([]snapshot.Info, error)
	// List returns the snapshots of all places.
	List func(c *cli.Context) ([]snapshot.Info, error)
	// Delete removes a snapshot from all places.
	Delete func(c *cli.Context, name string) error
	// Restore puts a snapshot, or one in a file, in place of the datastore.
	Restore func(c *cli.Context, nameOrFile string) (snapshot.Restored, error)
}

// SnapshotCommand has a command below it for each of the functions in s.
func SnapshotCommand(s Snapshots) *cli.Command {
	output := &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: outputTable, Usage: "`FORMAT` of the list: table or json"}
	return &cli.Command{
		Name:      "snapshot",
		Usage:     "save, list, delete and restore snapshots of the datastore",
		UsageText: "clusterd snapshot COMMAND",
		Description: "A snapshot holds the datastore, the certificate authorities, the service-account key and the token of the server on\n" +
			"this machine. Options that are not on the command line come from the environment and the configuration file, as for\n" +
			"clusterd server. Keep snapshots safe: they hold all secrets of the cluster.",
		Subcommands: []*cli.Command{
			{
				Name: "save", Usage: "save a snapshot", ArgsUsage: "[NAME]", Flags: s.Flags(), Action: s.save,
				Description: "The server may run or not. Without a NAME it is called on-demand, with the node's name and the time.",
			},
			{
				Name: "list", Aliases: []string{"ls"}, Usage: "list the snapshots", Flags: append(s.Flags(), output), Action: s.list,
				Description: "Prints where each snapshot is, when it was saved, its size, the version of clusterd and the revision of the datastore.",
			},
			{
				Name: "delete", Aliases: []string{"rm"}, Usage: "delete snapshots", ArgsUsage: "NAME...", Flags: s.Flags(), Action: s.delete,
				Description: "Deletes them from the directory and, with --snapshot-s3, from the object store.",
			},
			{
				Name: "restore", Usage: "put a snapshot in place of the datastore", ArgsUsage: "NAME|FILE", Flags: s.Flags(), Action: s.restore,
				Description: "The server must be stopped. What is replaced is kept aside, in files that end in .old and the time. An interrupted\n" +
					"restore is finished by the next one, or by the next start of the server.",
			},
		},
	}
}

const (
	outputTable = "table"
	outputJSON  = "json"
)

// flagsFirst is a usage error when a flag is behind an argument, where it would be taken for one.
func flagsFirst(c *cli.Context) error {
	for _, arg := range c.Args().Slice() {
		if strings.HasPrefix(arg, "-") {
			return UsageErrorf(c, "%s stands behind an argument: flags come first", arg)
		}
	}
	return nil
}

func (s Snapshots) save(c *cli.Context) error {
	if err := flagsFirst(c); err != nil {
		return err
	}
	if c.NArg() > 1 {
		return UsageErrorf(c, "save takes one name")
	}
	name := c.Args().First()
	if c.NArg() == 1 {
		var err error
		if name, err = snapshot.CheckName(name); err != nil {
			return UsageErrorf(c, "%v", err)
		}
	}
	made, err := s.Save(c, name)
	for _, i := range made {
		fmt.Fprintf(c.App.Writer, "saved %s (%s, revision %d, %d keys)\n", i.Location, mebibytes(i.Size), i.Revision, i.Keys)
	}
	return err
}

func (s Snapshots) list(c *cli.Context) error {
	if err := NoArguments(c); err != nil {
		return err
	}
	output := c.String("output")
	if output != outputTable && output != outputJSON {
		return UsageErrorf(c, "there is no output %q, only %s and %s", output, outputTable, outputJSON)
	}
	all, err := s.List(c)
	if err != nil {
		return err
	}
	if output == outputJSON {
		return printJSON(c.App.Writer, all)
	}
	return printSnapshots(c.App.Writer, all)
}

func printJSON(w io.Writer, all []snapshot.Info) error {
	if all == nil {
		all = []snapshot.Info{} // and not null
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(all); err != nil {
		return fmt.Errorf("print snapshots: %w", err)
	}
	return nil
}

func printSnapshots(w io.Writer, all []snapshot.Info) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "NAME\tCREATED\tSIZE\tVERSION\tREVISION\tLOCATION")
	for _, i := range all {
		if i.Fault != "" {
			fmt.Fprintf(t, "%s\t-\t%s\tunreadable\t-\t%s\n", i.Name, mebibytes(i.Size), i.Location)
			continue
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%s\n", i.Name, i.Created.Format(time.RFC3339), mebibytes(i.Size), i.Version, i.Revision, i.Location)
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print snapshots: %w", err)
	}
	return nil
}

func (s Snapshots) delete(c *cli.Context) error {
	if err := flagsFirst(c); err != nil {
		return err
	}
	if c.NArg() == 0 {
		return UsageErrorf(c, "delete needs the name of a snapshot")
	}
	for _, name := range c.Args().Slice() {
		if err := s.deleteOne(c, name); err != nil {
			return err
		}
		fmt.Fprintln(c.App.Writer, "deleted", name)
	}
	return nil
}

func (s Snapshots) deleteOne(c *cli.Context, name string) error {
	name, err := snapshot.CheckName(name)
	if err != nil {
		return UsageErrorf(c, "%v", err)
	}
	if err := s.Delete(c, name); err != nil {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

func (s Snapshots) restore(c *cli.Context) error {
	if err := flagsFirst(c); err != nil {
		return err
	}
	if c.NArg() != 1 {
		return UsageErrorf(c, "restore needs the name of one snapshot, or a file")
	}
	r, err := s.Restore(c, c.Args().First())
	if err != nil {
		return err
	}
	w := c.App.Writer
	fmt.Fprintf(w, "restored %d keys as of %s, revision %d of clusterd %s; revisions go on after %d\n",
		r.Keys, r.Created.Format(time.RFC3339), r.Revision, r.Version, r.Last)
	if r.Unread != nil {
		fmt.Fprintf(w, "the replaced datastore did not tell its revision: %v\n", r.Unread)
	}
	for _, path := range r.Aside {
		fmt.Fprintf(w, "kept aside: %s\n", path)
	}
	fmt.Fprintln(w, "start the server to use it")
	return nil
}
