package tunnel

import (
	"fmt"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var upDesc = metrics.NewDesc("clusterd_node_tunnel_up", "1 while the joined node holds a tunnel to this server, else 0.",
	[]string{"node"}, nil, metrics.ALPHA, "")

// collector looks at the tunnels when somebody asks.
type collector struct {
	metrics.BaseStableCollector
	tunnels *Tunnels
	nodes   Joined
}

// ShowMetrics adds the tunnels to the metrics of the process, once in it.
func ShowMetrics(t *Tunnels, nodes Joined) error {
	if err := legacyregistry.CustomRegister(&collector{tunnels: t, nodes: nodes}); err != nil {
		return fmt.Errorf("register metrics of the tunnels: %w", err)
	}
	return nil
}

// DescribeWithStability names the figures.
func (c *collector) DescribeWithStability(to chan<- *metrics.Desc) { to <- upDesc }

// CollectWithStability gives one for each joined node.
func (c *collector) CollectWithStability(to chan<- metrics.Metric) {
	for _, n := range c.nodes.Joined() {
		up := 0.0
		if c.tunnels.has(n.Name) {
			up = 1
		}
		to <- metrics.NewLazyConstMetric(upDesc, metrics.GaugeValue, up, n.Name)
	}
}
