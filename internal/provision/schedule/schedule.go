// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package schedule computes the times of a schedule in cron format.
package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
)

// help tells users how to write a valid schedule.
const help = `write five fields, like "0 */6 * * *" for every six hours, or one of @hourly, @daily, @weekly, @monthly and @yearly; times are UTC`

// Schedule is a parsed schedule. Its times are in UTC.
type Schedule struct{ times cron.Schedule }

// MinPeriod is the minimum interval between two times of a schedule. It is needed because the retention limits the
// number of snapshots, regardless of their age. With a schedule such as "* */5 * * *" (every minute of every fifth
// hour), the snapshots from one hour would replace all earlier ones.
const MinPeriod = 5 * time.Minute

// Parse parses a schedule. Its errors explain the accepted syntax.
func Parse(text string) (Schedule, error) {
	if strings.HasPrefix(strings.TrimSpace(text), "@every") {
		return Schedule{}, errors.New(`the schedule "@every" depends on when it began: ` + help)
	}
	parsed, err := cron.ParseStandard("TZ=UTC " + text)
	if err != nil {
		return Schedule{}, fmt.Errorf("the schedule %q cannot be read: %w: %s", text, err, help)
	}
	if field, step, values := longStep(text); field != "" {
		return Schedule{}, fmt.Errorf("the schedule %q has the step /%d for the %s, but there are only %d, so that it would be due only at the first: %s", text, step, field, values, help)
	}
	s := Schedule{parsed}
	if s.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero() {
		return Schedule{}, fmt.Errorf("the schedule %q names no day that exists: %s", text, help)
	}
	if at, gap := s.closest(); gap < MinPeriod {
		return Schedule{}, fmt.Errorf("the schedule %q has times only %s apart, such as %s, but %s is the minimum, so that snapshots do not push out all earlier ones; "+
			"a minute field of * means every minute: %s", text, gap, at.Format("15:04"), MinPeriod, help)
	}
	return s, nil
}

// longStep returns a field whose step is not smaller than the number of its possible values. For example, "*/90" looks
// like every 90 minutes but means every hour. longStep returns "" if there is no such field.
func longStep(text string) (field string, step, values int) {
	fields := strings.Fields(text)
	for i, known := range []struct {
		name   string
		values int
	}{{"minute", 60}, {"hour", 24}, {"day of the month", 31}, {"month", 12}, {"day of the week", 7}} {
		if i >= len(fields) {
			break
		}
		for part := range strings.SplitSeq(fields[i], ",") {
			_, after, stepped := strings.Cut(part, "/")
			if n, err := strconv.Atoi(after); stepped && err == nil && n >= known.values {
				return known.name, n, known.values
			}
		}
	}
	return "", 0, 0
}

// closest finds the two consecutive times of the schedule that are closest to each other. It returns the later of the
// two times, and the interval between them. For the densest schedule that is allowed, the examined times cover two
// days. A denser schedule is detected within the first few hours.
func (s Schedule) closest() (at time.Time, gap time.Duration) {
	const most = 600
	first := s.Next(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC))
	last, gap := first, 24*time.Hour
	for range most {
		next := s.Next(last)
		if next.IsZero() || next.Sub(first) > 366*24*time.Hour {
			break
		}
		if between := next.Sub(last); between < gap {
			at, gap = next, between
		}
		last = next
	}
	return at, gap
}

// Next returns the first time of the schedule after the given time.
func (s Schedule) Next(after time.Time) time.Time { return s.times.Next(after.UTC()) }

// Latest returns the last time of the schedule in (after, until], or false if there is none. It examines at most a few
// thousand times. It first examines the last hour, and goes back farther only if no time of the schedule is in that
// hour.
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
