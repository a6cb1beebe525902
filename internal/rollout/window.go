// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // embeds the time zone database for windows, because the image does not contain one

	v1 "github.com/drover-dev/drover/api/v1"
)

const (
	dayMinutes = 24 * 60
	week       = 7
)

// Window is a time window that recurs every week. The zero Window and a nil Window are always open.
type Window struct {
	days       [week]bool
	start, end int // minutes of the day; end exceeds dayMinutes if the window extends past midnight
	zone       *time.Location
}

// NewWindow returns the window that a plan specifies. For a nil spec, the window is always open.
func NewWindow(spec *v1.TimeWindow) (*Window, error) {
	if spec == nil {
		return nil, nil
	}
	zone, err := spec.Location()
	if err != nil {
		return nil, fmt.Errorf("read window: %w", err)
	}
	w := &Window{zone: zone, end: dayMinutes}
	if spec.StartTime != "" {
		if w.start, err = minutes(spec.StartTime); err != nil {
			return nil, err
		}
	}
	if spec.EndTime != "" {
		if w.end, err = minutes(spec.EndTime); err != nil {
			return nil, err
		}
	}
	if w.start == w.end || w.start == dayMinutes {
		return nil, fmt.Errorf("read window: it opens at %s and closes at %s, so it is never open", spec.StartTime,
			spec.EndTime)
	}
	if w.end < w.start {
		w.end += dayMinutes
	}
	for _, day := range spec.Days {
		d, err := weekday(string(day))
		if err != nil {
			return nil, err
		}
		w.days[d] = true
	}
	if len(spec.Days) == 0 {
		w.days = [week]bool{true, true, true, true, true, true, true}
	}
	return w, nil
}

// ParseWindow parses text such as "Sat,Sun 02:00-06:00 Europe/Berlin". The text consists of days, times and a time
// zone, in this order. Each of these parts is optional. For empty text, ParseWindow returns a nil window. A nil window
// is always open.
func ParseWindow(text string) (*Window, error) {
	fields := strings.Fields(text)
	if len(fields) == 0 {
		return nil, nil
	}
	spec := &v1.TimeWindow{}
	if _, err := weekday(strings.Split(fields[0], ",")[0]); err == nil {
		for day := range strings.SplitSeq(fields[0], ",") {
			spec.Days = append(spec.Days, v1.Day(day))
		}
		fields = fields[1:]
	}
	if len(fields) > 0 {
		if start, end, found := strings.Cut(fields[0], "-"); found && strings.Contains(start, ":") {
			spec.StartTime, spec.EndTime = start, end
			fields = fields[1:]
		}
	}
	if len(fields) > 0 {
		spec.TimeZone, fields = fields[0], fields[1:]
	}
	if len(fields) > 0 {
		return nil, fmt.Errorf(`read window %q: write it like "Sat,Sun 02:00-06:00 Europe/Berlin"`, text)
	}
	return NewWindow(spec)
}

// Open reports whether the window is open, and returns the time of the next change. The time is zero if there is no
// next change.
func (w *Window) Open(now time.Time) (open bool, until time.Time) {
	if w == nil || w.zone == nil {
		return true, time.Time{}
	}
	spans := w.spans(now)
	for _, s := range spans {
		switch {
		case now.Before(s.from):
			if open && until.Before(s.from) {
				return true, until
			}
			if !open {
				return false, s.from
			}
			until = later(until, s.to)
		case now.Before(s.to):
			open, until = true, later(until, s.to)
		}
	}
	if open && until.Sub(now) > week*24*time.Hour {
		return true, time.Time{} // the window covers the whole week without a gap
	}
	return open, until
}

type span struct{ from, to time.Time }

// spans returns the window's spans in order. The first span is on the day before yesterday, and the last one is after
// the window's next opening. Spans may touch or overlap.
func (w *Window) spans(now time.Time) []span {
	today := now.In(w.zone)
	var spans []span
	for ahead := -2; ahead <= week+2; ahead++ {
		day := time.Date(today.Year(), today.Month(), today.Day()+ahead, 0, 0, 0, 0, time.UTC)
		if !w.days[day.Weekday()] {
			continue
		}
		from, _ := instants(day, w.start, w.zone)
		_, to := instants(day, w.end, w.zone)
		if from.Before(to) {
			spans = append(spans, span{from, to})
		}
	}
	return spans
}

// instants returns the first and the last instant at which the clocks in a zone show a given time of day. They differ
// if the clocks are set back past that time. If the clocks are set forward past that time, both results are the instant
// of the change.
func instants(day time.Time, minute int, zone *time.Location) (first, last time.Time) {
	wall := day.Add(time.Duration(minute) * time.Minute)
	var found []time.Time
	for _, day := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		_, offset := wall.Add(day).In(zone).Zone()
		at := wall.Add(-time.Duration(offset) * time.Second)
		if _, there := at.In(zone).Zone(); there == offset {
			found = append(found, at)
		}
	}
	if len(found) == 0 {
		_, before := wall.Add(-24 * time.Hour).In(zone).Zone()
		change, _ := wall.Add(-time.Duration(before) * time.Second).In(zone).ZoneBounds()
		return change, change
	}
	return slices.MinFunc(found, time.Time.Compare), slices.MaxFunc(found, time.Time.Compare)
}

// clockForm matches a time of day in the format that the schema requires.
var clockForm = regexp.MustCompile(`^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$`)

func minutes(clock string) (int, error) {
	if !clockForm.MatchString(clock) {
		return 0, fmt.Errorf(`read window: %q is no time of day: write "HH:MM"`, clock)
	}
	hour, _ := strconv.Atoi(clock[:2])
	minute, _ := strconv.Atoi(clock[3:])
	return hour*60 + minute, nil
}

func weekday(name string) (time.Weekday, error) {
	name = strings.ToLower(name)
	for d := time.Sunday; d <= time.Saturday; d++ {
		full := strings.ToLower(d.String())
		if slices.Contains([]string{full, full[:3], full[:2], fmt.Sprint(int(d))}, name) {
			return d, nil
		}
	}
	return 0, fmt.Errorf("read window: %q is not a day of the week", name)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Sooner returns the earlier of two times. The zero time means never.
func Sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
