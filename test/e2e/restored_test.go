// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// backup contains the objects in a backup of the hub that belong to a plan.
type backup struct {
	plan           *v1.Plan
	claims, labels map[string]string // of Clusters, by name
}

func (f *fleet) backUp(t *testing.T, p *v1.Plan) backup {
	t.Helper()
	b := backup{plan: p.DeepCopy(), claims: map[string]string{}, labels: map[string]string{}}
	for name := range f.members {
		c, key := f.cluster(t, cluster(name)), v1.PlanLabel(p.Name)
		b.claims[name], b.labels[name] = c.Annotations[key], c.Labels[key]
	}
	return b
}

// restore restores the hub's objects to their previous state. No manager may run during this.
func (f *fleet) restore(t *testing.T, b backup) {
	t.Helper()
	p := &v1.Plan{}
	p.Name, p.Namespace = b.plan.Name, b.plan.Namespace
	testkit.Update(t, f.hub.Client, p, func(p *v1.Plan) { p.Spec = b.plan.Spec })
	p.Status = b.plan.Status
	p.Status.ObservedGeneration = p.Generation
	for i := range p.Status.Conditions {
		p.Status.Conditions[i].ObservedGeneration = p.Generation
	}
	if err := f.hub.Client.Status().Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	for name := range f.members {
		key := v1.PlanLabel(p.Name)
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"annotations": map[string]string{key: b.claims[name]}, "labels": map[string]string{key: b.labels[name]}}})
		if err != nil {
			t.Fatal(err)
		}
		if err := f.hub.Client.Patch(t.Context(), f.cluster(t, cluster(name)), client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
	}
}

// jobs returns the Jobs of plans in all members by UID.
func (f *fleet) jobs(t *testing.T) map[types.UID]string {
	t.Helper()
	all := map[types.UID]string{}
	for name, plane := range f.members {
		found := &batchv1.JobList{}
		if err := plane.Client.List(t.Context(), found, client.InNamespace(v1.PlansNamespace)); err != nil {
			t.Fatal(err)
		}
		for _, job := range found.Items {
			all[job.UID] = name + "/" + job.Name
		}
	}
	return all
}

func testRestored(f *fleet, t *testing.T) {
	f.killManagers(t)
	before := f.jobs(t)
	f.restore(t, f.backup)
	f.startManagers(t)
	expectUntouched := func() {
		t.Helper()
		if after := f.jobs(t); !maps.Equal(after, before) {
			t.Errorf("Jobs were %v and are %v", before, after)
		}
		for name, plane := range f.members {
			nodes := &corev1.NodeList{}
			if err := plane.Client.List(t.Context(), nodes); err != nil {
				t.Fatal(err)
			}
			for _, n := range nodes.Items {
				if n.Labels["example.org/version"] != "v1.36.5" || n.Spec.Unschedulable != (name+"/"+n.Name == cordoned) {
					t.Errorf("%s/%s: unschedulable is %t, labels %v", name, n.Name, n.Spec.Unschedulable, n.Labels)
				}
			}
		}
	}
	p := f.plan(t, "k3s", time.Minute, func(p *v1.Plan) bool {
		complete := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionComplete)
		return is(v1.ReasonMemberAhead)(p) && strings.Contains(complete.Message, "alpha, beta, home")
	})
	if !meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled) {
		t.Errorf("the status is %+v", p.Status)
	}
	testkit.Eventually(t, 20*time.Second, func(ctx context.Context) error {
		var errs []error
		for name, plane := range f.members {
			in := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: v1.PlansNamespace, Name: p.Name}}
			if err := plane.Client.Get(ctx, client.ObjectKeyFromObject(in), in); err != nil || !in.Spec.Paused || in.Annotations[v1.AnnotationRevision] != p.Status.Revision {
				errs = append(errs, fmt.Errorf("%s is not given the old plan, paused: %w, %+v", name, err, in.Annotations))
			}
		}
		return errors.Join(errs...)
	})
	expectUntouched()
	f.setVersion(t, "k3s", "v1.36.5")
	f.expectDone(t, f.plan(t, "k3s", planPatience, is(v1.ReasonComplete)), "v1.36.5")
	expectUntouched()
	f.expectNoHarm(t)
}
