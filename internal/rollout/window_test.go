// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"strings"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

func at(t *testing.T, text string) time.Time {
	t.Helper()
	got, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// 2026-11-21 is a Saturday. Berlin is at UTC+1 in winter. Its clocks go forward on 2026-03-29 at 02:00 and back on
// 2026-10-25 at 03:00.
func TestWindowsOpenAndClose(t *testing.T) {
	for name, tt := range map[string]struct {
		window, now string
		open        bool
		until       string // empty means never
	}{
		"no window is always open": {"", "2026-11-21T09:00:00Z", true, ""},
		"all days are always open": {"UTC", "2026-11-21T09:00:00Z", true, ""},
		"a time inside the window": {
			"Sat 02:00-06:00", "2026-11-21T03:00:00Z", true, "2026-11-21T06:00:00Z",
		},
		"the first moment is inside": {
			"Sat 02:00-06:00", "2026-11-21T02:00:00Z", true, "2026-11-21T06:00:00Z",
		},
		"the last moment is outside": {
			"Sat 02:00-06:00", "2026-11-21T06:00:00Z", false, "2026-11-28T02:00:00Z",
		},
		"a window that opens later today": {
			"Sat 22:00-23:00", "2026-11-21T09:00:00Z", false, "2026-11-21T22:00:00Z",
		},
		"a window over midnight belongs to the day on which it starts": {
			"Sat 22:00-04:00", "2026-11-22T03:00:00Z", true, "2026-11-22T04:00:00Z",
		},
		"a window over midnight, on the day before": {
			"Sun 22:00-04:00", "2026-11-22T03:00:00Z", false, "2026-11-22T22:00:00Z",
		},
		"consecutive days are one span": {
			"Sat,Sun", "2026-11-21T09:00:00Z", true, "2026-11-23T00:00:00Z",
		},
		"days as numbers and words, in any case": {
			"6,SUNDAY,tu 00:00-24:00", "2026-11-21T09:00:00Z", true, "2026-11-23T00:00:00Z",
		},
		"a window in a time zone": {
			"02:00-06:00 Europe/Berlin", "2026-11-21T01:00:00Z", true, "2026-11-21T05:00:00Z",
		},
		"a day in the time zone, not in UTC": {
			"Sat 00:00-01:00 Asia/Tokyo", "2026-11-20T15:30:00Z", true, "2026-11-20T16:00:00Z",
		},
		"an hour shorter when clocks go forward": {
			"Sun 01:00-05:00 Europe/Berlin", "2026-03-29T00:30:00Z", true, "2026-03-29T03:00:00Z",
		},
		"an hour longer when clocks go back": {
			"Sun 01:00-05:00 Europe/Berlin", "2026-10-24T23:30:00Z", true, "2026-10-25T04:00:00Z",
		},
		"a start that does not exist becomes the change of clocks": {
			"Sun 02:30-05:00 Europe/Berlin", "2026-03-29T00:59:00Z", false, "2026-03-29T01:00:00Z",
		},
		"an end that does not exist becomes the change of clocks": {
			"Sun 01:00-02:30 Europe/Berlin", "2026-03-29T00:30:00Z", true, "2026-03-29T01:00:00Z",
		},
		"a window that does not exist on a day is skipped": {
			"Sun 02:10-02:50 Europe/Berlin", "2026-03-29T00:30:00Z", false, "2026-04-05T00:10:00Z",
		},
		"of a repeated hour the first start and the last end count": {
			"Sun 02:30-02:45 Europe/Berlin", "2026-10-25T01:00:00Z", true, "2026-10-25T01:45:00Z",
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := rollout.ParseWindow(tt.window)
			if err != nil {
				t.Fatal(err)
			}
			open, until := w.Open(at(t, tt.now))
			var want time.Time
			if tt.until != "" {
				want = at(t, tt.until)
			}
			if open != tt.open || !until.Equal(want) {
				t.Errorf("open %v until %v, want %v until %v", open, until.UTC(), tt.open, want)
			}
		})
	}
}

// A window changes at the announced time and not before, at whatever time Open is called.
func TestWindowChangesAtTheAnnouncedTime(t *testing.T) {
	for _, text := range []string{"Sat,Sun 02:00-06:00 Europe/Berlin", "22:00-04:30 America/New_York",
		"Mon 23:00-01:00 Australia/Lord_Howe", "Wed", "02:15-02:45 Europe/London"} {
		w, err := rollout.ParseWindow(text)
		if err != nil {
			t.Fatal(err)
		}
		now, end := at(t, "2026-01-01T00:00:00Z"), at(t, "2027-01-10T00:00:00Z")
		for now.Before(end) {
			open, until := w.Open(now)
			if !until.After(now) {
				t.Fatalf("%s: at %v the next change is at %v, want a later time", text, now, until)
			}
			if same, _ := w.Open(until.Add(-time.Second)); same != open {
				t.Fatalf("%s: at %v it changes before %v, want no earlier change", text, now, until)
			}
			if other, _ := w.Open(until); other == open {
				t.Fatalf("%s: at %v it does not change at %v, want a change then", text, now, until)
			}
			now = until
		}
	}
}

func TestInvalidWindowsAreRefused(t *testing.T) {
	for _, text := range []string{
		"Caturday", "Sat,", "25:00-26:00", "02:00-02:00", "02:00-06:00 Europe/Atlantis", "Sat 02:00-06:00 UTC tomorrow", "2:00-6:00",
		"02:00-+6:00", "02:00-6:0pm", "1:000-06:00", "-0:00-06:00", "02:00-24:30",
		"Local", "local", "02:00-06:00 Local", "Sat localtime", "posixrules", "right/Europe/Berlin", "posix/UTC", "UTC+1", "+01:00", "/etc/localtime", "../localtime",
	} {
		if _, err := rollout.ParseWindow(text); err == nil || !strings.HasPrefix(err.Error(), "read window") {
			t.Errorf("%q: %v, want an error that begins with \"read window\"", text, err)
		}
	}
	if _, err := rollout.NewWindow(&v1.TimeWindow{StartTime: "24:00"}); err == nil {
		t.Error("a window that starts at the end of the day was accepted, want an error")
	}
	for _, zone := range []string{"Local", "localtime", "UTC+1", "right/UTC"} {
		if _, err := rollout.NewWindow(&v1.TimeWindow{TimeZone: zone}); err == nil ||
			!strings.Contains(err.Error(), "Europe/Berlin") {
			t.Errorf("time zone %q: %v, want an error with an example of a zone", zone, err)
		}
	}
}

// A member's administrator writes the annotation manually. Any text is parsed or refused, and every window announces
// its next change.
func FuzzParseWindow(f *testing.F) {
	for _, text := range []string{"Sat,Sun 02:00-06:00 Europe/Berlin", "22:00-04:00", "mon", "Local", "../etc/passwd",
		"00:00-24:00 Pacific/Apia", "+1:00-1:000"} {
		f.Add(text, int64(1_800_000_000))
	}
	f.Fuzz(func(t *testing.T, text string, seconds int64) {
		w, err := rollout.ParseWindow(text)
		if err != nil {
			return
		}
		now := time.Unix(seconds%(1<<33), 0)
		if _, until := w.Open(now); !until.IsZero() && !until.After(now) {
			t.Errorf("%q at %s changes next at %s, want a later time", text, now, until)
		}
	})
}
