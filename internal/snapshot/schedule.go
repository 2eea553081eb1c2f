package snapshot

import (
	"context"
	"fmt"
	"time"

	"github.com/robfig/cron/v3"
)

// Schedule tells when snapshots are due; nil is never.
type Schedule = cron.Schedule

// ParseSchedule reads five fields as in a crontab, or a word as @daily. Nothing and "disabled" are never.
func ParseSchedule(text string) (Schedule, error) {
	if text == "" || text == "disabled" {
		return nil, nil
	}
	s, err := cron.ParseStandard(text)
	if err != nil {
		return nil, err
	}
	if s.Next(time.Now()).IsZero() {
		return nil, fmt.Errorf("it is never")
	}
	return s, nil
}

// Follow calls do whenever s says so, until ctx ends. In between nothing wakes up, but when clock tells that the time of day
// was set or the machine has slept; a moment that was passed over by that is left out.
func Follow(ctx context.Context, s Schedule, clock <-chan struct{}, do func(context.Context)) {
	for ctx.Err() == nil {
		next := s.Next(time.Now()).Round(0) // by the time of day
		timer := time.NewTimer(time.Until(next))
		select {
		case <-ctx.Done():
		case _, open := <-clock:
			if !open {
				clock = nil
			}
		case <-timer.C:
			if !time.Now().Round(0).Before(next) {
				do(ctx)
			}
		}
		timer.Stop()
	}
}
