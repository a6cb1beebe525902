// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule says at which times of a schedule in the form of cron something is due.
package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// help is what a person does about a schedule that cannot be read.
const help = `write five fields, like "0 */6 * * *" for every six hours, or one of @hourly, @daily, @weekly, @monthly and @yearly; times are UTC`

// Schedule is one that has been read. Its times are UTC.
type Schedule struct{ times cron.Schedule }

// Parse reads a schedule. Its error says what to write.
func Parse(text string) (Schedule, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "@every") {
		return Schedule{}, errors.New(`the schedule "@every" depends on when it began: ` + help)
	}
	parsed, err := cron.ParseStandard("TZ=UTC " + text)
	if err != nil {
		return Schedule{}, fmt.Errorf("the schedule %q cannot be read: %w: %s", text, err, help)
	}
	s := Schedule{parsed}
	if s.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, fmt.Errorf("the schedule %q names no day that a calendar has: %s", text, help)
	}
	return s, nil
}

// Next returns the first time of the schedule after a time.
func (s Schedule) Next(after time.Time) time.Time { return s.times.Next(after.UTC()) }

// Latest returns the last time of the schedule in (after, until], and false if there is none. However many there were, it looks at some thousand of them at most: at the
// last hour first, and farther back only if that had none.
func (s Schedule) Latest(after, until time.Time) (time.Time, bool) {
	for _, back := range []time.Duration{time.Hour, 24 * time.Hour, 32 * 24 * time.Hour, 9 * 366 * 24 * time.Hour} {
		from := until.Add(-back)
		if from.Before(after) {
			from = after
		}
		var last time.Time
		for t := s.Next(from); !t.IsZero() && !t.After(until); t = s.Next(t) {
			last = t
		}
		if !last.IsZero() {
			return last, true
		}
		if from.Equal(after) {
			return time.Time{}, false
		}
	}
	return time.Time{}, false
}
