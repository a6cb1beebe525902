// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/test/testkit"
)

func TestPace(t *testing.T) {
	env := testkit.Shared(t)
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: env.Workspace(t), Name: "member"}}
	env.Apply(t, cluster)
	var written status.Written[*v1.Cluster]
	start := time.Now()
	now, writes := start, 0
	output := status.Output{Client: env.Client, Recorder: events.NewFakeRecorder(1), Now: func() time.Time { return now }}
	// write changes the status with fill, and returns when to come back.
	write := func(change status.Change, fill func(*v1.Cluster, *status.Update) bool) time.Duration {
		t.Helper()
		read := cluster.DeepCopy()
		change.Fill = func(u *status.Update) bool { return fill(read, u) }
		result, err := written.Write(t.Context(), output, read, change)
		if err != nil {
			t.Fatal(err)
		}
		if read.ResourceVersion != cluster.ResourceVersion {
			writes++
			cluster = read
		}
		return result.RequeueAfter
	}
	another := func(urgent bool) time.Duration {
		t.Helper()
		return write(status.Change{}, func(c *v1.Cluster, _ *status.Update) bool {
			c.Status.Version = fmt.Sprint("v", writes)
			return urgent
		})
	}
	// tell writes another status if the pace allows, and reports whether it was written.
	tell := func(urgent bool) bool { t.Helper(); return another(urgent) == 0 }
	t.Run("an urgent change and the first change after it are written at once", func(t *testing.T) {
		for range 3 {
			if !tell(true) || !tell(false) || tell(false) {
				t.Error("a change had to wait, want it written at once")
			}
		}
	})
	t.Run("a status that changes constantly is written less and less often", func(t *testing.T) {
		before := writes
		for ; now.Before(start.Add(time.Minute)); now = now.Add(100 * time.Millisecond) {
			tell(false)
		}
		if got := writes - before; got < 6 || got > 10 {
			t.Errorf("got %d writes in a minute, want 6 to 10", got)
		}
	})
	t.Run("an update without a change is not a write", func(t *testing.T) {
		now = now.Add(time.Hour)
		for range 5 {
			if wait := write(status.Change{}, func(*v1.Cluster, *status.Update) bool { return false }); wait != 0 {
				t.Errorf("it waits for %v, want 0 without a write", wait)
			}
		}
	})
	t.Run("after a pause the wait is a second again", func(t *testing.T) {
		if wait := another(false); wait != 0 {
			t.Errorf("it waits for %v, want 0", wait)
		}
		if wait := another(false); wait != time.Second {
			t.Errorf("it waits for %v, want a second after a write", wait)
		}
	})
	t.Run("a fixed rest is the wait after each write, even after an urgent one", func(t *testing.T) {
		now = now.Add(time.Hour)
		for _, urgent := range []bool{true, false, false} {
			for _, want := range []time.Duration{0, time.Minute} {
				wait := write(status.Change{Rest: time.Minute}, func(c *v1.Cluster, _ *status.Update) bool {
					c.Status.Version = fmt.Sprint("v", writes)
					return urgent && want == 0
				})
				if wait != want {
					t.Errorf("urgent %t: it waits for %v, want %v", urgent, wait, want)
				}
			}
			now = now.Add(time.Minute)
		}
	})
	t.Run("a status that is about to change waits, and comes back after the delay", func(t *testing.T) {
		now = now.Add(time.Hour)
		before := writes
		for _, tt := range []struct{ delay, until, want time.Duration }{
			{time.Second, 0, time.Second}, {time.Second, time.Minute, time.Second}, {time.Minute, time.Second, time.Second},
		} {
			got := write(status.Change{Delay: tt.delay, Until: tt.until},
				func(c *v1.Cluster, _ *status.Update) bool { c.Status.Version = "never"; return true })
			if got != tt.want || writes != before {
				t.Errorf("delay %v, until %v: it comes back after %v with %d writes, want %v and none", tt.delay, tt.until, got,
					writes-before, tt.want)
			}
		}
		got := write(status.Change{Until: time.Minute},
			func(c *v1.Cluster, _ *status.Update) bool { c.Status.Version = "now"; return false })
		if got != time.Minute || writes != before+1 {
			t.Errorf("it comes back after %v with %d writes, want a minute and one", got, writes-before)
		}
	})
	t.Run("a rare event is remembered with its reason after it was written", func(t *testing.T) {
		now = now.Add(time.Hour)
		fill := func(c *v1.Cluster, u *status.Update) bool {
			c.Status.Version = fmt.Sprint("v", writes)
			u.Event(status.Event{Reason: "Rare", Rare: true})
			u.Event(status.Event{Reason: "Often"})
			return false
		}
		output.Recorder = events.NewFakeRecorder(10)
		write(status.Change{Delay: time.Second}, fill)
		if told := written.Told(cluster, "Rare"); !told.IsZero() {
			t.Errorf("got %v before the write, want the zero time", told)
		}
		write(status.Change{}, fill)
		if told := written.Told(cluster, "Rare"); !told.Equal(now) || !written.Told(cluster, "Often").IsZero() {
			t.Errorf("got %v, want %v, and the zero time for the other reason", told, now)
		}
		next := cluster.DeepCopy()
		next.Generation++
		if told := written.Told(next, "Rare"); !told.IsZero() {
			t.Errorf("got %v for another generation, want the zero time", told)
		}
	})
}
