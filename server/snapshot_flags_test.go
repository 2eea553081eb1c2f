package server_test

import (
	"testing"

	"github.com/clusterd/clusterd/internal/snapshot"
	"github.com/clusterd/clusterd/server"
)

func schedule(t *testing.T, text string) snapshot.Schedule {
	t.Helper()
	s, err := snapshot.ParseSchedule(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const s3 = "--snapshot-s3 --snapshot-s3-bucket=b --snapshot-s3-access-key=a --snapshot-s3-secret-key=s"

// wrongSnapshots are further wrongValues.
var wrongSnapshots = []wrong{
	{"--snapshot-schedule-cron=", ""},
	{"--snapshot-schedule-cron=disabled", ""},
	{"--snapshot-schedule-cron=often", `--snapshot-schedule-cron: "often" is no schedule such as "0 */12 * * *": `},
	{"--snapshot-retention=-1", `--snapshot-retention: "-1" is not a number of snapshots`},
	{"--snapshot-retention=all", "is not a number of snapshots"},
	{"--snapshot-retention=0", ""},
	{"--snapshot-name=a/b", `--snapshot-name: "a/b" cannot be the name of a snapshot`},
	{"--snapshot-name=upgrade", `--snapshot-name: "upgrade" is the name of snapshots that are saved before upgrades`},
	{"--snapshot-s3-bucket=", ""},
	{s3 + " --snapshot-s3-endpoint-ca=/does/not/exist", "--snapshot-s3-endpoint-ca: /does/not/exist does not exist"},
	{s3 + " --snapshot-s3-endpoint=https://a", `--snapshot-s3-endpoint: "https://a" is not a host`},
	{s3 + " --snapshot-s3-bucket=", "--snapshot-s3-bucket: is needed with snapshot-s3"},
	{s3 + " --snapshot-s3-secret-key=", "--snapshot-s3-secret-key: is needed with snapshot-s3"},
	{s3, ""},
}

// The snapshot commands have the flags that they need and no other.
func TestSnapshotFlags(t *testing.T) {
	var names []string
	for _, f := range server.SnapshotFlags() {
		names = append(names, f.Names()[0])
	}
	if len(names) != 13 || names[0] != "config" || names[1] != "data-dir" || names[2] != "snapshot-dir" || names[3] != "snapshot-s3" {
		t.Errorf("the flags are %q", names)
	}
}
