// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// testPlansElsewhereTakeNoMemory creates many large Plans in another namespace. A user with all rights in a namespace
// of a member can do that, and it must not fill the memory of the agent.
func testPlansElsewhereTakeNoMemory(t *testing.T, s *env) {
	s.run(t, options{})
	s.nodes(t, "own", "own-a")
	s.create(t, newPlan("own", 0))
	s.await(t, "own", v1.ReasonComplete)
	before := heap()
	const many = 16
	for i := range many {
		p := newPlan(fmt.Sprintf("elsewhere-%d", i), 0)
		p.Namespace = metav1.NamespaceDefault
		for range 60 {
			p.Spec.Upgrade.Args = append(p.Spec.Upgrade.Args, strings.Repeat("x", 16<<10))
		}
		s.create(t, p)
	}
	// one after the other, because reading one of them costs the API server as much as a hundred others
	for i := range many {
		p := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("elsewhere-%d", i)}}
		eventually(t, func(ctx context.Context) error {
			if err := s.client.Get(ctx, client.ObjectKeyFromObject(p), p); err != nil {
				return err
			}
			if c := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionStalled); c == nil ||
				c.Reason != v1.ReasonWrongNamespace {
				return fmt.Errorf("conditions of %s are %+v, want Stalled for %s", p.Name, p.Status.Conditions,
					v1.ReasonWrongNamespace)
			}
			return nil
		})
	}
	if grown := heap() - before; grown > many<<20/2 {
		t.Errorf("got %d MiB more memory for %d plans of 1 MiB that are not run, want less than half of their size",
			grown>>20, many)
	}
	if err := s.client.DeleteAllOf(t.Context(), &v1.Plan{}, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		t.Fatal(err) // the cases after this one would read the plans again and again
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
