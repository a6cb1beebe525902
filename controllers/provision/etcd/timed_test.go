// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/schedule"
)

func TestWhenASnapshotIsDue(t *testing.T) {
	const day = "2026-03-01T"
	at := func(text string) time.Time {
		parsed, err := time.Parse(time.RFC3339, text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	for name, c := range map[string]struct {
		schedule, now string
		// times of the day of the snapshots that the schedule has created; "?" follows a snapshot that has not ended
		made       string
		restoring  bool
		due, again string // times of the day
	}{
		"none was made, and one is due":            {"0 * * * *", "11:00", "", false, "11:00", "12:00"},
		"a moment later, too":                      {"0 * * * *", "11:09", "", false, "11:00", "12:00"},
		"a schedule that was just set":             {"0 * * * *", "11:30", "", false, "", "12:00"},
		"one was made":                             {"0 * * * *", "11:30", "11:00", false, "", "12:00"},
		"many were missed":                         {"*/5 * * * *", "11:32", "01:00 02:00", false, "11:30", "11:35"},
		"the latest counts, in whatever order":     {"0 * * * *", "11:30", "02:00 11:00 01:00", false, "", "12:00"},
		"one has not ended":                        {"0 * * * *", "11:30", "09:00?", false, "", "12:00"},
		"one before the latest has not ended":      {"0 * * * *", "11:30", "08:00? 09:00", false, "", "12:00"},
		"a restore is under way":                   {"0 * * * *", "11:30", "09:00", true, "", "12:00"},
		"a clock that was ahead":                   {"0 * * * *", "11:30", "10:00 23:00", false, "11:00", "12:00"},
		"a schedule that has become less frequent": {"0 0 * * *", "11:30", "11:00", false, "", "24:00"},
		"and more": {"*/5 * * * *", "11:30", "00:00", false, "11:30", "11:35"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := schedule.Parse(c.schedule)
			if err != nil {
				t.Fatal(err)
			}
			var made []*provisionv1.EtcdSnapshot
			for _, text := range strings.Fields(c.made) {
				hour, running := strings.CutSuffix(text, "?")
				o := &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{provisionv1.AnnotationScheduledFor: day + hour + ":00Z"}}}
				if o.Status.Phase = provisionv1.SnapshotSucceeded; running {
					o.Status.Phase = provisionv1.SnapshotRunning
				}
				made = append(made, o)
			}
			sortScheduled(made, at(day+c.now+":00Z"))
			got := timed(s, made, c.restoring, at(day+c.now+":00Z"))
			due := ""
			if !got.due.IsZero() {
				due = got.due.Format("15:04")
			}
			if again := at(day + "00:00:00Z").Add(time.Duration(minutes(c.again)) * time.Minute); due != c.due || !got.again.Equal(again) {
				t.Errorf("due %q, again %v, want %q and %v", due, got.again, c.due, again)
			}
		})
	}
}

func TestSnapshotFromTheFutureCountsAsTheOldest(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	var all []*provisionv1.EtcdSnapshot
	for _, hour := range []int{10, 14, 12, 11, 13} {
		at := now.Add(time.Duration(hour-12) * time.Hour).Format(time.RFC3339)
		all = append(all, &provisionv1.EtcdSnapshot{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{provisionv1.AnnotationScheduledFor: at}}})
	}
	sortScheduled(all, now)
	var got []int
	for _, o := range all {
		got = append(got, scheduledFor(o).Hour())
	}
	if want := "[12 11 10 14 13]"; fmt.Sprint(got) != want {
		t.Errorf("the snapshots of %v, want %s: the newest first, and those of the future last", got, want)
	}
}

// minutes returns the minutes of a time of the day.
func minutes(text string) int {
	h, m, _ := strings.Cut(text, ":")
	return int((h[0]-'0')*10+h[1]-'0')*60 + int((m[0]-'0')*10+m[1]-'0')
}

func TestScheduledSnapshotIsNamedAfterItsClusterAndTime(t *testing.T) {
	due := time.Date(2026, 3, 1, 11, 0, 0, 0, time.UTC)
	long := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a", 253), UID: "u"}}
	other := &infrav1.DroverCluster{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("a", 252) + "b", UID: "v"}}
	one, again, next, another := scheduledSnapshot(long, due), scheduledSnapshot(long, due.In(time.FixedZone("", 3600))), scheduledSnapshot(long, due.Add(time.Minute)), scheduledSnapshot(other, due)
	if one.Name != again.Name || one.Name == next.Name || one.Name == another.Name || len(one.Name) > 253 {
		t.Errorf("%s, %s, %s", one.Name, next.Name, another.Name)
	}
	if !scheduledBy(one, long) || scheduledBy(one, other) {
		t.Error("want it to be of its cluster alone")
	}
	for name, change := range map[string]func(*metav1.OwnerReference){
		"another kind":              func(by *metav1.OwnerReference) { by.Kind = "DroverMachine" },
		"another group":             func(by *metav1.OwnerReference) { by.APIVersion = "example.com/v1" },
		"another name":              func(by *metav1.OwnerReference) { by.Name = "b" },
		"another UID":               func(by *metav1.OwnerReference) { by.UID = "w" },
		"one that is no controller": func(by *metav1.OwnerReference) { by.Controller = nil },
	} {
		forged := one.DeepCopy()
		if change(&forged.OwnerReferences[0]); scheduledBy(forged, long) {
			t.Errorf("an owner of %s makes it one of the schedule", name)
		}
	}
	one.OwnerReferences = nil
	if scheduledBy(one, long) {
		t.Error("a label alone makes it one of the schedule")
	}
}
