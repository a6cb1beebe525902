// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
)

// maxEndpoints is the maximum number of endpoints in a task. The schema defines the same limit.
const maxEndpoints = 32

// fieldOwner is the field manager for the tasks that this controller adds to machines. Tasks from other field managers
// are kept.
const fieldOwner = client.FieldOwner("drover-etcd")

// pause pauses the Cluster API Cluster for a restore, or unpauses it after the restore. A Cluster that a user has
// paused stays paused.
func (in *input) pause(ctx context.Context, active *provisionv1.EtcdRestore, d kubeadm.Decision) error {
	if active == nil {
		return nil
	}
	by := string(active.UID)
	switch holder := clusterapi.PausedBy(in.owner); {
	case d.Pause == kubeadm.Hold && !in.owner.Spec.Paused:
		return clusterapi.SetPaused(ctx, in.Client, in.owner, by)
	case d.Pause == kubeadm.Release && holder == by, d.Pause == kubeadm.ReleaseAll && holder != "":
		return clusterapi.SetPaused(ctx, in.Client, in.owner, "")
	}
	return nil
}

// give adds tasks to machines, and removes the tasks of snapshots and restores that have ended.
func (in *input) give(ctx context.Context, d kubeadm.Decision) error {
	var errs []error
	for i := range in.machines {
		m := &in.machines[i]
		if !m.DeletionTimestamp.IsZero() {
			continue
		}
		want, has := d.Tasks[m.Name], in.decide.Machines[i].Tasks
		if slices.EqualFunc(want, has, func(a, b kubeadm.Task) bool { return a.ID == b.ID }) {
			continue
		}
		if err := owned.Apply(ctx, in.Client, tasks(m, want), fieldOwner); err != nil {
			errs = append(errs, fmt.Errorf("give DroverMachine %s/%s its tasks: %w", m.Namespace, m.Name, err))
		}
	}
	return errors.Join(errs...)
}

// tasks returns an object that sets the machine's tasks when the object is applied. It has no side effects.
func tasks(m *infrav1.DroverMachine, want []kubeadm.Task) *unstructured.Unstructured {
	list := []any{}
	for _, t := range want {
		task := t.DeepCopy()
		task.Etcd.Endpoints = task.Etcd.Endpoints[:min(len(task.Etcd.Endpoints), maxEndpoints)]
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(task)
		if err != nil { // strings can always be encoded
			panic(err)
		}
		list = append(list, content)
	}
	spec := map[string]any{}
	if len(list) > 0 {
		spec["tasks"] = list
	}
	object := owned.Part(m, infrav1.GroupVersion.WithKind("DroverMachine"))
	object.Object["spec"] = spec
	return object
}

// hold adds a finalizer to a restore. The finalizer keeps a deleted restore until the restore has ended.
func (in *input) hold(ctx context.Context, restore *provisionv1.EtcdRestore) error {
	return owned.SetFinalizer(ctx, in.Client, restore, provisionv1.FinalizerRestore, controllerutil.AddFinalizer)
}
