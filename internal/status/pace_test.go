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
	var written status.Written
	start := time.Now()
	now, writes := start, 0
	// tell writes another status if it may be, and returns whether it was.
	tell := func(urgent bool) bool {
		t.Helper()
		if written.Wait(cluster, urgent, now) > 0 {
			return false
		}
		writes++
		update := status.Begin(cluster)
		cluster.Status.Version = fmt.Sprint(writes)
		if err := written.Commit(t.Context(), update, env.Client, events.NewFakeRecorder(1), now); err != nil {
			t.Fatal(err)
		}
		return true
	}
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
			if err := written.Commit(t.Context(), status.Begin(cluster), env.Client, events.NewFakeRecorder(1), now); err != nil {
				t.Fatal(err)
			}
		}
		if wait := written.Wait(cluster, false, now); wait != 0 {
			t.Error(wait)
		}
	})
	t.Run("after a rest it is a second again", func(t *testing.T) {
		if !tell(false) || written.Wait(cluster, false, now) != time.Second {
			t.Error(written.Wait(cluster, false, now))
		}
	})
}
