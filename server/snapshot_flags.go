package server

import (
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/clusterd/clusterd/internal/config"
	"github.com/clusterd/clusterd/internal/datadir"
	"github.com/clusterd/clusterd/internal/options"
	"github.com/clusterd/clusterd/internal/snapshot"
)

// upgradeName begins the names of snapshots that are saved before the first start of another version.
const upgradeName = "upgrade"

// SnapshotConfig says when snapshots are saved and where.
type SnapshotConfig struct {
	// Schedule is when; nil is never.
	Schedule snapshot.Schedule
	// Name begins the names of scheduled snapshots.
	Name string
	// Retention is how many of them are kept, in each place; 0 keeps all.
	Retention int
	// Dir is the absolute path of their directory. Empty: the one in the data directory.
	Dir string
	// S3 is where they are copied to as well. Nil: nowhere.
	S3 *snapshot.BucketConfig
}

// Folder is where snapshots of a data directory are.
func (c SnapshotConfig) Folder(dir datadir.Dir) snapshot.Folder {
	if c.Dir != "" {
		return snapshot.Folder(c.Dir)
	}
	return snapshot.Folder(dir.Snapshots())
}

// Bucket is the S3-compatible place, nil when there is none.
func (c SnapshotConfig) Bucket() (*snapshot.Bucket, error) {
	if c.S3 == nil {
		return nil, nil
	}
	return snapshot.NewBucket(*c.S3)
}

func snapshotFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "snapshot-schedule-cron", Category: inSnapshots, Value: "0 */12 * * *",
			Usage: "save a snapshot of the datastore at `TIMES`, as in a crontab; never when empty or disabled"},
		&cli.StringFlag{Name: "snapshot-retention", Category: inSnapshots, Value: "5",
			Usage: "keep the newest `NUMBER` of scheduled snapshots, and of those before upgrades; 0 keeps all"},
		&cli.StringFlag{Name: "snapshot-name", Category: inSnapshots, Value: "scheduled",
			Usage: "`NAME` of scheduled snapshots; the node's name and the time follow it"},
		&cli.StringFlag{Name: "snapshot-dir", Category: inSnapshots, DefaultText: "server/db/snapshots in the data directory", TakesFile: true,
			Usage: "`DIRECTORY` of snapshots"},
		&cli.BoolFlag{Name: "snapshot-s3", Category: inSnapshots,
			Usage: "keep snapshots in an S3-compatible object store too"},
		&cli.StringFlag{Name: "snapshot-s3-endpoint", Category: inSnapshots, Value: "s3.amazonaws.com",
			Usage: "`HOST` of the object store, with :PORT if it is another than usual"},
		&cli.StringFlag{Name: "snapshot-s3-endpoint-ca", Category: inSnapshots, DefaultText: "the system's", TakesFile: true,
			Usage: "`FILE` with the authorities of the object store's certificate"},
		&cli.BoolFlag{Name: "snapshot-s3-skip-ssl-verify", Category: inSnapshots,
			Usage: "do not check the object store's certificate"},
		&cli.BoolFlag{Name: "snapshot-s3-insecure", Category: inSnapshots,
			Usage: "reach the object store without TLS"},
		&cli.StringFlag{Name: "snapshot-s3-bucket", Category: inSnapshots,
			Usage: "`NAME` of the bucket, which must be there"},
		&cli.StringFlag{Name: "snapshot-s3-region", Category: inSnapshots, Value: "us-east-1",
			Usage: "`NAME` of the bucket's region"},
		&cli.StringFlag{Name: "snapshot-s3-folder", Category: inSnapshots,
			Usage: "`PATH` in the bucket"},
		&cli.StringFlag{Name: "snapshot-s3-access-key", Category: inSnapshots,
			Usage: "`KEY` that names the user of the bucket"},
		&cli.StringFlag{Name: "snapshot-s3-secret-key", Category: inSnapshots,
			Usage: "`SECRET` of that user; rather in the configuration file than on the command line"},
	}
}

// SnapshotFlags are those of Flags that matter to the snapshot commands.
func SnapshotFlags() []cli.Flag {
	var all []cli.Flag
	for _, f := range Flags() {
		switch name := f.Names()[0]; name {
		case config.FileFlag, "data-dir", "snapshot-dir":
			all = append(all, f)
		default:
			if strings.HasPrefix(name, "snapshot-s3") {
				all = append(all, f)
			}
		}
	}
	return all
}

// SnapshotsFromContext is FromContext for the snapshot commands, which have only some of the flags. The rest of the Config
// is empty.
func SnapshotsFromContext(c *cli.Context) (Config, error) {
	p := &config.Problems{}
	r := reader{options.Reader{V: config.Load(c, Flags(), p), P: p}}
	cfg := Config{Node: r.Node(), Snapshots: r.snapshots()}
	return cfg, p.Err()
}

func (r reader) snapshots() SnapshotConfig {
	c := SnapshotConfig{Name: r.V.String("snapshot-name"), Dir: r.Path("snapshot-dir", options.Optional)}
	var err error
	if c.Schedule, err = snapshot.ParseSchedule(r.V.String("snapshot-schedule-cron")); err != nil {
		r.Problem("snapshot-schedule-cron", "%q is no schedule such as \"0 */12 * * *\": %w", r.V.String("snapshot-schedule-cron"), err)
	}
	if c.Retention, err = strconv.Atoi(r.V.String("snapshot-retention")); err != nil || c.Retention < 0 {
		r.Problem("snapshot-retention", "%q is not a number of snapshots", r.V.String("snapshot-retention"))
	}
	if name, err := snapshot.CheckName(c.Name); err != nil {
		r.Problem("snapshot-name", "%w", err)
	} else if name == upgradeName {
		r.Problem("snapshot-name", "%q is the name of snapshots that are saved before upgrades", name)
	}
	if r.V.Bool("snapshot-s3") {
		c.S3 = r.bucket()
	}
	return c
}

func (r reader) bucket() *snapshot.BucketConfig {
	c := &snapshot.BucketConfig{
		Endpoint:      r.V.String("snapshot-s3-endpoint"),
		EndpointCA:    r.Path("snapshot-s3-endpoint-ca", options.Existing),
		SkipSSLVerify: r.V.Bool("snapshot-s3-skip-ssl-verify"),
		Insecure:      r.V.Bool("snapshot-s3-insecure"),
		Name:          r.V.String("snapshot-s3-bucket"),
		Region:        r.V.String("snapshot-s3-region"),
		Folder:        strings.Trim(filepath.Clean("/"+r.V.String("snapshot-s3-folder")), "/"),
		AccessKey:     r.V.String("snapshot-s3-access-key"),
		SecretKey:     r.V.String("snapshot-s3-secret-key"),
	}
	if c.Endpoint == "" || strings.ContainsAny(c.Endpoint, "/ ") {
		r.Problem("snapshot-s3-endpoint", "%q is not a host, or host:port, without https:// or a path", c.Endpoint)
	}
	for _, needed := range []string{"snapshot-s3-bucket", "snapshot-s3-access-key", "snapshot-s3-secret-key"} {
		if r.V.String(needed) == "" {
			r.Problem(needed, "is needed with snapshot-s3")
		}
	}
	return c
}
