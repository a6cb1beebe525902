// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/provision/schedule"
)

func TestParseRefusesBadSchedulesWithHelp(t *testing.T) {
	for text, want := range map[string]string{
		"0 */6 * * *": "", "@daily": "", "@hourly": "", "30 2 * * MON-FRI": "", "0 0 29 2 *": "",
		"":                        "cannot be read",
		"often":                   "cannot be read",
		"0 0 0 * * *":             "cannot be read",
		"61 * * * *":              "cannot be read",
		"@reboot":                 "cannot be read",
		"@every 5m":               "depends on when it began",
		"0 0 31 2 *":              "no day that exists",
		"TZ=Asia/Tokyo * ":        "cannot be read",
		"CRON_TZ=Local 0 * * * *": "cannot be read",
		"@EVERY 1h":               "cannot be read",
		"every day":               "cannot be read",
		"*/5 * * * *":             "", "0,5 * * * *": "", "@midnight": "", "0 0 1 1 *": "",
		"*/90 * * * *":      "the step /90 for the minute, but there are only 60",
		"0,5/60 * * * *":    "the step /60 for the minute",
		"0 */48 * * *":      "the step /48 for the hour, but there are only 24",
		"0 0 */40 * *":      "the step /40 for the day of the month",
		"0 0 1 */12 *":      "the step /12 for the month",
		"0 0 * * */7":       "the step /7 for the day of the week",
		"0 */23 * * *":      "",
		"* */5 * * *":       "1m0s apart",
		"* * * * *":         "1m0s apart",
		"*/4 * * * *":       "4m0s apart",
		"1-59/2 3 * * MON":  "2m0s apart",
		"0,58 * * * *":      "2m0s apart",
		"0,58 0,23 * * *":   "2m0s apart", // over midnight
		"0,57 0,23 1,2 1 *": "3m0s apart",
	} {
		_, err := schedule.Parse(text)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: got %v, want it to be read", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "write five fields")):
			t.Errorf("%q: got %v, want %q and the help", text, err, want)
		}
	}
}

func TestLatest(t *testing.T) {
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for name, c := range map[string]struct{ schedule, after, until, want string }{
		"none has come":                          {"0 * * * *", "2026-03-01T10:00:00Z", "2026-03-01T10:59:59Z", ""},
		"one is due exactly now":                 {"0 * * * *", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z", "2026-03-01T11:00:00Z"},
		"the last of many that were missed":      {"*/5 * * * *", "2019-03-01T10:00:00Z", "2026-03-01T10:59:30Z", "2026-03-01T10:55:00Z"},
		"the last of a day":                      {"0 3 * * *", "2026-01-01T00:00:00Z", "2026-03-01T02:59:00Z", "2026-02-28T03:00:00Z"},
		"a year ago":                             {"@yearly", "2024-06-01T00:00:00Z", "2026-12-31T00:00:00Z", "2026-01-01T00:00:00Z"},
		"a leap day of years ago":                {"0 0 29 2 *", "2020-01-01T00:00:00Z", "2027-12-31T00:00:00Z", "2024-02-29T00:00:00Z"},
		"times are UTC, wherever the manager is": {"0 12 * * *", "2026-03-01T10:00:00+09:00", "2026-03-01T22:00:00+09:00", "2026-03-01T12:00:00Z"},
		"a clock that was set back":              {"0 * * * *", "2026-03-01T12:00:00Z", "2026-03-01T10:30:00Z", ""},
	} {
		s, err := schedule.Parse(c.schedule)
		if err != nil {
			t.Fatal(err)
		}
		got, found := s.Latest(at(c.after), at(c.until))
		if found != (c.want != "") || found && !got.Equal(at(c.want)) {
			t.Errorf("%s: got %v, %t, want %q", name, got, found, c.want)
		}
	}
}
