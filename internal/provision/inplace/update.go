// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inplace

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
)

// fieldOwner is the field manager for the tasks that update machines. It owns no other tasks.
const fieldOwner = client.FieldOwner("drover-update")

// retrySeconds tells Cluster API how long to wait before it calls the hook again.
const retrySeconds = 5

// maxAttempt is the maximum length of an attempt's name. The schema defines the same limit.
const maxAttempt = 63

// step is the next step of an update.
type step struct {
	// tasks are the update tasks of the machine. They must be written if write is true.
	tasks    []infrav1.MachineTask
	write    bool
	response response
}

// updateMachine takes the next step of an update. It accepts only a Machine that Cluster API has started to update, and
// reads the new version from the Machine in the API server.
func (h *Hooks) updateMachine(ctx context.Context, o *order) (response, error) {
	name := types.NamespacedName{Namespace: o.Desired.Machine.Metadata.Namespace, Name: o.Desired.Machine.Metadata.Name}
	unknown := response{Status: failure, Message: "there is no such Machine, or the Machine and its DroverMachine are not both being updated in place"}
	if name.Namespace == "" || name.Name == "" {
		return unknown, nil
	}
	machine, err := clusterapi.GetMachine(ctx, h.Live, name)
	if apierrors.IsNotFound(err) || err == nil && !machine.UpdatesInPlace() {
		return unknown, nil
	} else if err != nil {
		return response{}, err
	}
	ref := machine.Spec.InfrastructureRef
	if ref.APIGroup != infrav1.Group || ref.Kind != "DroverMachine" {
		return unknown, nil
	}
	of := &infrav1.DroverMachine{}
	err = h.Live.Get(ctx, types.NamespacedName{Namespace: name.Namespace, Name: ref.Name}, of)
	if apierrors.IsNotFound(err) || err == nil && !clusterapi.InPlaceUpdate(of) {
		return unknown, nil
	} else if err != nil {
		return response{}, fmt.Errorf("read DroverMachine %s/%s: %w", name.Namespace, ref.Name, err)
	}
	if owner, err := clusterapi.MachineOf(ctx, h.Live, of); err != nil {
		return response{}, err
	} else if owner == nil || owner.UID != machine.UID {
		return unknown, nil
	}
	var kubeadm clusterapi.Kubeadm
	if machine.ByKubeadm() {
		if kubeadm, err = clusterapi.GetKubeadm(ctx, h.Live, machine); err != nil {
			return response{}, err
		}
	}
	next := decide(machine, of, kubeadm)
	if next.write {
		if err := h.apply(ctx, of, next.tasks); err != nil {
			return response{}, err
		}
	}
	return next.response, nil
}

// decide returns the next step of an update. It has no side effects.
//
// The task stays the same for the whole update, even if Cluster API calls the hook many times. It is found by its
// version and attempt. Its ID is not suitable, because it is derived from the Machine's generation, and unrelated
// changes may also increase the generation.
func decide(machine *clusterapi.Machine, of *infrav1.DroverMachine, kubeadm clusterapi.Kubeadm) step {
	to, attempt, here := machine.Spec.Version, protocol.Cut(of.Annotations[infrav1.AnnotationUpdateAttempt], maxAttempt), machine.Status.NodeInfo.KubeletVersion
	var task *infrav1.MachineTask
	begun, stale := false, false
	for i := range of.Spec.Tasks {
		if update := of.Spec.Tasks[i].Update; update != nil && update.Version == to && update.Attempt == attempt {
			task = &of.Spec.Tasks[i]
		} else if update != nil {
			stale, begun = true, begun || update.Version == to
		}
	}
	wait := func(format string, args ...any) step {
		return step{response: response{Status: success, RetryAfterSeconds: retrySeconds, Message: fmt.Sprintf(format, args...)}}
	}
	switch {
	case task == nil && !begun && here == to:
		return step{write: stale, response: response{Status: success, Message: "the kubelet has version " + to}}
	case task == nil && !machine.ByKubeadm():
		return step{response: response{Status: failure, Message: fmt.Sprintf("kubeadm does not set up Machine %s", machine.Name)}}
	case task == nil && of.Spec.InPlaceUpdate == nil:
		return step{response: response{Status: failure, Message: fmt.Sprintf("DroverMachine %s has no spec.inPlaceUpdate", of.Name)}}
	case task == nil:
		next := wait("Host %s is given the update to %s", of.Status.HostName, to)
		update := &infrav1.UpdateTask{Version: to, Attempt: attempt, Patches: kubeadm.Patches, IgnorePreflightErrors: kubeadm.IgnorePreflightErrors}
		next.tasks, next.write = []infrav1.MachineTask{{ID: taskID(machine, attempt), Action: infrav1.TaskUpdate, Update: update}}, true
		return next
	}
	state := infrav1.TaskPending
	for _, s := range of.Status.Tasks {
		if s.ID == task.ID {
			state = s.State
		}
	}
	switch {
	case state == infrav1.TaskFailed:
		return step{response: response{Status: failure, Message: fmt.Sprintf(
			"the update to %s failed on Host %s, and is not repeated. The condition TasksSucceeded of DroverMachine %s has the end of its output. Delete the Machine to have it replaced, or repair the machine and set the annotation %s of the DroverMachine to another value",
			to, of.Status.HostName, of.Name, infrav1.AnnotationUpdateAttempt)}}
	case state != infrav1.TaskSucceeded:
		return wait("the update to %s on Host %s: %s", to, of.Status.HostName, state)
	case here != to:
		return wait("Host %s has carried out the update to %s; its Node reports the kubelet %s", of.Status.HostName, to, here)
	}
	return step{write: true, response: response{Status: success, Message: fmt.Sprintf("Host %s was updated to %s", of.Status.HostName, to)}}
}

// taskID returns an ID that is unique among the updates of a machine.
func taskID(machine *clusterapi.Machine, attempt string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d %s", machine.UID, machine.Spec.Version, machine.Generation, attempt))
	return "update-" + hex.EncodeToString(sum[:8])
}

// apply writes the update tasks of a machine, unless the machine has changed since it was read. It keeps the tasks of
// other controllers.
func (h *Hooks) apply(ctx context.Context, of *infrav1.DroverMachine, tasks []infrav1.MachineTask) error {
	list := make([]any, len(tasks))
	for i := range tasks {
		var err error
		if list[i], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&tasks[i]); err != nil {
			return fmt.Errorf("tasks of DroverMachine %s/%s: %w", of.Namespace, of.Name, err)
		}
	}
	want := owned.Part(of, infrav1.GroupVersion.WithKind("DroverMachine"))
	if len(tasks) > 0 {
		want.Object["spec"] = map[string]any{"tasks": list}
	}
	if err := owned.Apply(ctx, h.Writer, want, fieldOwner); err != nil {
		return fmt.Errorf("write the tasks of DroverMachine %s/%s: %w", of.Namespace, of.Name, err)
	}
	return nil
}
