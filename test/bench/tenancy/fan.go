// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/fleetsim/sim"
	"github.com/drover-dev/drover/test/framework"
)

// fanPatience is the time limit for the connection of a fleet.
const fanPatience = 5 * time.Minute

// fan is a hub with many simulated members, which accept sets without applying them.
type fan struct {
	hub     *framework.Hub
	members int
	fleet   *sim.Sim
}

// measureFan measures the time from a write on the hub until all of many members have the object.
func measureFan(ctx context.Context, programs framework.Programs, dir string, members int) (rows []row, err error) {
	dir = filepath.Join(dir, fmt.Sprintf("fan-%d", members))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	plane, err := framework.StartPlane(ctx, programs, "hub", dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plane.Kill()) }()
	f := &fan{members: members}
	f.hub, err = framework.InstallHub(ctx, plane)
	if f.hub != nil {
		defer func() { err = errors.Join(err, f.hub.StopManagers()) }()
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fanPatience)
	defer cancel()
	if f.fleet, err = f.enrol(ctx); err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { f.fleet.Run(ctx) })
	if _, err := f.await(ctx, set.Guards, f.members); err != nil {
		return nil, err
	}
	return f.measure(ctx)
}

func (f *fan) enrol(ctx context.Context) (*sim.Sim, error) {
	bundle, err := f.hub.Bundle(ctx)
	if err != nil {
		return nil, err
	}
	members, err := sim.Enrolment{Hub: f.hub.Client, Server: f.hub.URL(), Bundle: bundle, Clusters: f.members, Workspaces: 1}.Do(ctx)
	if err != nil {
		return nil, err
	}
	return sim.New(sim.Options{Server: f.hub.URL(), Bundle: bundle, Members: members})
}

// await waits until some members have received a set again, and returns the times of arrival.
func (f *fan) await(ctx context.Context, id string, members int) ([]time.Time, error) {
	var came []time.Time
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, arrival := range f.fleet.Arrivals() {
			if arrival.ID == id {
				came = append(came, arrival.At)
			}
		}
		if len(came) >= members {
			return came, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("set %s came to %d of %d members: %w", id, len(came), members, ctx.Err())
		}
	}
}

// measure makes several writes, one after another, and measures the delivery of each.
func (f *fan) measure(ctx context.Context) ([]row, error) {
	workspace := sim.ClusterName(0, 1).Namespace
	template := &v1.RoleTemplate{ObjectMeta: metav1.ObjectMeta{Name: "fan"}, Spec: v1.RoleTemplateSpec{Context: v1.ContextCluster, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}}}}}
	b := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "fan"}, Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{}}, RoleTemplateName: template.Name, Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:fan"}}}
	if err := f.hub.Client.Create(ctx, template); err != nil {
		return nil, err
	}
	if err := f.label(ctx); err != nil {
		return nil, err
	}
	all, some := f.baseline("all", nil), f.baseline("some", map[string]string{tenth: "true"})
	var rows []row
	for _, step := range []struct {
		what, id string
		members  int
		write    func() error
	}{
		{"one binding with a selector", "crtb/fan", f.members, func() error { return f.hub.Client.Create(ctx, b) }},
		{"its role template changes", "role/fan", f.members, func() error {
			return f.hub.Client.Patch(ctx, template, client.RawPatch("application/merge-patch+json",
				[]byte(`{"spec":{"rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get","list"]}]}}`)))
		}},
		{"the binding is deleted", "crtb/fan", f.members, func() error { return f.hub.Client.Delete(ctx, b) }},
		{"one Baseline of 10 objects with a selector", "baseline/all", f.members,
			func() error { return f.hub.Client.Create(ctx, all) }},
		{"one of its objects changes", "baseline/all", f.members, func() error {
			before := all.DeepCopy()
			all.Spec.Manifests[0] = f.manifest("changed")
			return f.hub.Client.Patch(ctx, all, client.MergeFrom(before))
		}},
		{fmt.Sprintf("another Baseline for %d of them", f.labelled()), "baseline/some", f.labelled(),
			func() error { return f.hub.Client.Create(ctx, some) }},
		{"the first Baseline is deleted", "baseline/all", f.members,
			func() error { return f.hub.Client.Delete(ctx, all) }},
	} {
		r, err := f.timed(ctx, step.id, step.members, step.write)
		if err != nil {
			return nil, err
		}
		r.what = fmt.Sprintf("%d members: %s", f.members, step.what)
		rows = append(rows, r)
	}
	return rows, nil
}

// tenth is the label of a tenth of the Clusters.
const tenth = "tenth"

func (f *fan) labelled() int { return max(f.members/10, 1) }

// label labels a tenth of the Clusters.
func (f *fan) label(ctx context.Context) error {
	for i := range f.labelled() {
		cluster, name := &v1.Cluster{}, sim.ClusterName(i, 1)
		cluster.Namespace, cluster.Name = name.Namespace, name.Name
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+tenth+`":"true"}}}`))
		if err := f.hub.Client.Patch(ctx, cluster, patch); err != nil {
			return err
		}
	}
	return nil
}

// baseline returns a Baseline of 10 objects for the Clusters with the given labels.
func (f *fan) baseline(name string, labels map[string]string) *v1.Baseline {
	b := &v1.Baseline{Spec: v1.BaselineSpec{RoleTemplateName: "fan"}}
	b.Namespace, b.Name = sim.ClusterName(0, 1).Namespace, name
	b.Spec.ClusterSelector = &metav1.LabelSelector{MatchLabels: labels}
	for i := range 10 {
		b.Spec.Manifests = append(b.Spec.Manifests, f.manifest(fmt.Sprint(i)))
	}
	return b
}

func (f *fan) manifest(name string) v1.Manifest {
	return v1.Manifest{RawExtension: runtime.RawExtension{Raw: fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"namespace":"default"},"data":{"text":%q}}`, name,
		strings.Repeat("x", 1000))}}
}

// quietWrites is the number of writes that a control plane makes on its own while it settles.
const quietWrites = 2

// quiet waits until writes on the hub have ceased, and returns the number of writes.
func (f *fan) quiet(ctx context.Context) (float64, error) {
	before, err := f.hub.Writes(ctx)
	for err == nil {
		if err = settle(ctx); err != nil {
			break
		}
		now := 0.0
		if now, err = f.hub.Writes(ctx); err != nil || now-before <= quietWrites {
			return now, err
		}
		before = now
	}
	return 0, err
}

// timed returns the times at which the set of one write arrived at each member, and the writes on the hub that it
// caused.
func (f *fan) timed(ctx context.Context, id string, members int, write func() error) (row, error) {
	r := row{ofLast: true}
	before, err := f.quiet(ctx)
	if err != nil {
		return r, err
	}
	f.fleet.Arrivals() // of before
	cpu, err := f.hub.Replicas[0].Process.Usage()
	if err != nil {
		return r, err
	}
	begun := time.Now()
	if err := write(); err != nil {
		return r, err
	}
	came, err := f.await(ctx, id, members)
	if err != nil {
		return r, err
	}
	for _, at := range came {
		r.took = append(r.took, at.Sub(begun))
	}
	after, err := f.quiet(ctx)
	if err != nil {
		return r, err
	}
	used, err := f.hub.Replicas[0].Process.Usage()
	r.hub, r.cpu = after-before, used.CPU-cpu.CPU
	return r, err
}
