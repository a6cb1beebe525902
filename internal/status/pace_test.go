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
	// write changes the status as fill says, and returns when to come back.
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
	// tell writes another status if it may be, and reports whether it was.
	tell := func(urgent bool) bool { t.Helper(); return another(urgent) == 0 }
	t.Run("what is urgent, and the first word after it, is written at once", func(t *testing.T) {
		for range 3 {
			if !tell(true) || !tell(false) || tell(false) {
				t.Error("not so")
			}
		}
	})
	t.Run("a status that changes all the time is written less and less often", func(t *testing.T) {
		before := writes
		for ; now.Before(start.Add(time.Minute)); now = now.Add(100 * time.Millisecond) {
			tell(false)
		}
		if got := writes - before; got < 6 || got > 10 {
			t.Errorf("%d writes in a minute", got)
		}
	})
	t.Run("what changes nothing is no write", func(t *testing.T) {
		now = now.Add(time.Hour)
		for range 5 {
			if wait := write(status.Change{}, func(*v1.Cluster, *status.Update) bool { return false }); wait != 0 {
				t.Errorf("it waits for %v, want 0 of what is not written", wait)
			}
		}
	})
	t.Run("after a rest it is a second again", func(t *testing.T) {
		if wait := another(false); wait != 0 {
			t.Errorf("it waits for %v, want 0", wait)
		}
		if wait := another(false); wait != time.Second {
			t.Errorf("it waits for %v, want a second after a write", wait)
		}
	})
	t.Run("a rest that does not grow is the wait after each write, also after an urgent one", func(t *testing.T) {
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
	t.Run("what is about to change waits, and time alone brings it back", func(t *testing.T) {
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
	t.Run("a rare event is remembered with its reason, once it is written", func(t *testing.T) {
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
			t.Errorf("it was told at %v, want not yet", told)
		}
		write(status.Change{}, fill)
		if told := written.Told(cluster, "Rare"); !told.Equal(now) || !written.Told(cluster, "Often").IsZero() {
			t.Errorf("it was told at %v, want %v, and nothing of the other", told, now)
		}
		next := cluster.DeepCopy()
		next.Generation++
		if told := written.Told(next, "Rare"); !told.IsZero() {
			t.Errorf("of another generation it was told at %v, want never", told)
		}
	})
}
