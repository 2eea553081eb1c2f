package snapshot

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Prune deletes all but the newest keep of the snapshots whose names Stamped has made of base and node, and returns the names
// of those that are gone. Others are left alone.
func Prune(ctx context.Context, p Place, base, node string, keep int) ([]string, error) {
	names, err := p.Names(ctx)
	if err != nil {
		return nil, err
	}
	var ours []string
	for _, name := range names {
		stamp, ok := strings.CutPrefix(name, base+"-"+node+"-")
		if _, err := time.Parse(stampLayout, stamp); ok && err == nil {
			ours = append(ours, name)
		}
	}
	slices.Sort(ours)
	var gone []string
	for _, name := range ours[:max(0, len(ours)-keep)] {
		if err := p.Delete(ctx, name); err != nil && !errors.Is(err, ErrNotFound) {
			return gone, fmt.Errorf("remove old snapshot %s: %w", name, err)
		}
		gone = append(gone, name)
	}
	return gone, nil
}
