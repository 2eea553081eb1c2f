package cli_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clilib "github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/cli"
	"github.com/clusterd/clusterd/internal/snapshot"
)

// fakeSnapshots has two snapshots, of which one is damaged.
func fakeSnapshots() cli.Snapshots {
	one := snapshot.Info{Name: "one", Location: "/srv/one.tar.zst", Size: 3 << 19, Meta: snapshot.Meta{
		Format: 1, Created: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC), Version: "v1", Node: "node", Revision: 123, Keys: 45,
	}}
	two := snapshot.Info{Name: "two", Location: "s3://b/two.tar.zst", Size: 1 << 20, Fault: "cut off"}
	return cli.Snapshots{
		Flags: func() []clilib.Flag { return []clilib.Flag{&clilib.StringFlag{Name: "data-dir", Usage: "`DIRECTORY`"}} },
		Save: func(c *clilib.Context, name string) ([]snapshot.Info, error) {
			made := one
			made.Location = fmt.Sprintf("%s/%s.tar.zst", c.String("data-dir"), name)
			if name == "half" {
				return []snapshot.Info{made}, errors.New("the bucket is away")
			}
			return []snapshot.Info{made}, nil
		},
		List: func(c *clilib.Context) ([]snapshot.Info, error) {
			if c.String("data-dir") == "/empty" {
				return nil, nil
			}
			return []snapshot.Info{one, two}, nil
		},
		Delete: func(_ *clilib.Context, name string) error {
			if name == "none" {
				return snapshot.ErrNotFound
			}
			return nil
		},
		Restore: func(_ *clilib.Context, name string) (snapshot.Restored, error) {
			if name == "none" {
				return snapshot.Restored{}, errors.New("it is not there")
			}
			return snapshot.Restored{Meta: one.Meta, Last: 1000, Aside: []string{"/old"}, Unread: errors.New("damaged")}, nil
		},
	}
}

func TestSnapshot(t *testing.T) {
	const table = "NAME  CREATED               SIZE     VERSION     REVISION  LOCATION\n" +
		"one   2026-12-01T12:00:00Z  1.5 MiB  v1          123       /srv/one.tar.zst\n" +
		"two   -                     1.0 MiB  unreadable  -         s3://b/two.tar.zst\n"
	const inJSON = `[
  {
    "name": "one",
    "location": "/srv/one.tar.zst",
    "size": 1572864,
    "format": 1,
    "created": "2026-12-01T12:00:00Z",
    "version": "v1",
    "node": "node",
    "revision": 123,
    "keys": 45
  },
  {
    "name": "two",
    "location": "s3://b/two.tar.zst",
    "size": 1048576,
    "format": 0,
    "created": "0001-01-01T00:00:00Z",
    "version": "",
    "node": "",
    "revision": 0,
    "keys": 0,
    "fault": "cut off"
  }
]
`
	const restored = "restored 45 keys as of 2026-12-01T12:00:00Z, revision 123 of clusterd v1; revisions go on after 1000\n" +
		"the replaced datastore did not tell its revision: damaged\nkept aside: /old\nstart the server to use it\n"
	for _, row := range []struct {
		args, want, fault string
		code              int
	}{
		{"save --data-dir /d one", "saved /d/one.tar.zst (1.5 MiB, revision 123, 45 keys)\n", "", 0},
		{"save", "saved /.tar.zst (1.5 MiB, revision 123, 45 keys)\n", "", 0},
		{"save half", "saved /half.tar.zst (1.5 MiB, revision 123, 45 keys)\n", "the bucket is away", 1},
		{"save a b", "", "save takes one name", 2},
		{"save a/b", "", `"a/b" cannot be the name of a snapshot`, 2},
		{"save a --data-dir=/d", "", "--data-dir=/d stands behind an argument: flags come first", 2},
		{"list", table, "", 0},
		{"ls -o json", inJSON, "", 0},
		{"list --data-dir /empty -o json", "[]\n", "", 0},
		{"list -o xml", "", `there is no output "xml", only table and json`, 2},
		{"list one", "", "list takes no argument", 2},
		{"delete one two.tar.zst", "deleted one\ndeleted two.tar.zst\n", "", 0},
		{"delete one none", "deleted one\n", "delete none: there is no snapshot of that name", 1},
		{"delete ../one", "", "cannot be the name", 2},
		{"delete", "", "delete needs the name of a snapshot", 2},
		{"restore one", restored, "", 0},
		{"restore none", "", "it is not there", 1},
		{"restore", "", "restore needs the name of one snapshot, or a file", 2},
		{"restore one two", "", "restore needs the name of one snapshot", 2},
	} {
		t.Run(row.args, func(t *testing.T) {
			out, err := run(t, newApp(cli.Images{}), append([]string{"snapshot"}, strings.Fields(row.args)...)...)
			if out != row.want {
				t.Errorf("printed\n%s\nwant\n%s", out, row.want)
			}
			if row.fault == "" && err != nil || row.fault != "" && (err == nil || !strings.Contains(err.Error(), row.fault)) || cli.ExitCode(err) != row.code {
				t.Errorf("got %v, want %q and status %d", err, row.fault, row.code)
			}
		})
	}
}
