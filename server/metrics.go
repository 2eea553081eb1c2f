package server

import (
	"fmt"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/clusterd/clusterd/internal/datastore/engine"
	"github.com/clusterd/clusterd/server/tunnel"
)

// storeMetric is one of the datastore's figures on the API server's /metrics.
type storeMetric struct {
	desc *metrics.Desc
	kind metrics.ValueType
	of   func(engine.Stats) float64
}

func storeMetrics() []storeMetric {
	gauge := func(name, help string, of func(engine.Stats) float64) storeMetric {
		return storeMetric{metrics.NewDesc("clusterd_datastore_"+name, help, nil, nil, metrics.ALPHA, ""), metrics.GaugeValue, of}
	}
	counter := func(name, help string, of func(engine.Stats) float64) storeMetric {
		m := gauge(name, help, of)
		m.kind = metrics.CounterValue
		return m
	}
	return []storeMetric{
		gauge("keys", "Keys that the datastore holds.", func(s engine.Stats) float64 { return float64(s.Keys) }),
		gauge("revision", "Last revision of the datastore.", func(s engine.Stats) float64 { return float64(s.Current) }),
		gauge("compacted_revision", "Revision below which the datastore keeps no history.", func(s engine.Stats) float64 { return float64(s.Compacted) }),
		gauge("compaction_lag_revisions", "Revisions that compaction still has to remove.", func(s engine.Stats) float64 { return float64(s.Ripe) }),
		gauge("watches", "Watches open on the datastore.", func(s engine.Stats) float64 { return float64(s.Watches) }),
		gauge("file_bytes", "Size of the datastore's file.", func(s engine.Stats) float64 { return float64(s.FileBytes) }),
		gauge("live_bytes", "The part of the datastore's file that holds something.", func(s engine.Stats) float64 { return float64(s.FileBytes - s.FreeBytes) }),
		gauge("disk_free_bytes", "Room on the datastore's disk, as of the last writes.", func(s engine.Stats) float64 { return float64(s.DiskFree) }),
		gauge("disk_nearly_full", "1 when the datastore's disk is nearly full.", func(s engine.Stats) float64 {
			if s.DiskLow {
				return 1
			}
			return 0
		}),
		gauge("slowest_commit_seconds", "Longest time that one commit has taken since the start.", func(s engine.Stats) float64 { return s.SlowestCommit.Seconds() }),
		counter("commits_total", "Transactions that are on disk.", func(s engine.Stats) float64 { return float64(s.Commits) }),
		counter("commit_seconds_total", "Time that all commits have taken.", func(s engine.Stats) float64 { return s.CommitTime.Seconds() }),
		counter("revisions_total", "Revisions written.", func(s engine.Stats) float64 { return float64(s.Revisions) }),
		counter("compacted_revisions_total", "Revisions that compaction has removed.", func(s engine.Stats) float64 { return float64(s.Removed) }),
		counter("refused_total", "Transactions that could not be written, as on a full disk.", func(s engine.Stats) float64 { return float64(s.Refused) }),
	}
}

// storeCollector reads the figures when somebody asks for them.
type storeCollector struct {
	metrics.BaseStableCollector
	all   []storeMetric
	stats func() (engine.Stats, error)
}

// ShowMetrics adds the figures of the datastore and of the nodes' tunnels to those of the process, which the API server shows.
// There can be one Server in a process that does. A database elsewhere has figures of its own.
func (s *Server) ShowMetrics() error {
	if err := tunnel.ShowMetrics(s.tunnels, s.nodes); err != nil {
		return err
	}
	local, ok := s.store.(interface{ Stats() (engine.Stats, error) })
	if !ok {
		return nil
	}
	if err := legacyregistry.CustomRegister(&storeCollector{all: storeMetrics(), stats: local.Stats}); err != nil {
		return fmt.Errorf("register metrics of the datastore: %w", err)
	}
	return nil
}

// DescribeWithStability names the figures.
func (c *storeCollector) DescribeWithStability(to chan<- *metrics.Desc) {
	for _, m := range c.all {
		to <- m.desc
	}
}

// CollectWithStability gives the figures, and none while the store is not open.
func (c *storeCollector) CollectWithStability(to chan<- metrics.Metric) {
	s, err := c.stats()
	if err != nil {
		return
	}
	for _, m := range c.all {
		to <- metrics.NewLazyConstMetric(m.desc, m.kind, m.of(s))
	}
}
