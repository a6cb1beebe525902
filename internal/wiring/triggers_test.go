// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package wiring

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

func TestChangesAreLookedUpOutsideTheCallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changed := workqueue.NewTyped[string]()
		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
		defer q.ShutDown()
		release, lookups := make(chan struct{}), 0
		find := func(_ context.Context, member string) ([]types.NamespacedName, error) {
			lookups++
			<-release
			if member == "unreadable" {
				return nil, errors.New("the cache is being stopped")
			}
			return []types.NamespacedName{{Name: "plan-of-" + member}}, nil
		}
		go lookUp(t.Context(), changed, q, time.Millisecond, find)
		changed.Add("one")
		synctest.Wait() // the first change is being looked up, and waits
		for range 100 {
			changed.Add("one")
		}
		changed.Add("unreadable")
		changed.Add("two")
		close(release)
		time.Sleep(time.Second)
		synctest.Wait()
		if lookups != 4 {
			t.Errorf("got %d lookups, want one that was running, one for all changes after it, and two for the others", lookups)
		}
		if q.Len() != 2 {
			t.Errorf("got requests for %d objects, want the objects of one and two", q.Len())
		}
		changed.ShutDown()
	})
}
