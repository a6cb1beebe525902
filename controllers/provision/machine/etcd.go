// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/kubeadm"
)

// credential is what a host reaches a bucket with, as variables of an instruction, or why there is none.
type credential struct {
	variables map[string]string
	problem   error
}

// etcd makes the instruction of an action of etcd.
func etcd(in taskInput, task infrav1.MachineTask) (protocol.HostInstruction, error) {
	t, by := kubeadm.Task{Action: task.Action, EtcdTask: *task.Etcd}, in.credentials[task.ID]
	switch {
	case by.problem != nil && task.Action == infrav1.TaskEtcdPrepare: // the host may have the file
		t.Unreachable = by.problem.Error()
	case by.problem != nil:
		return protocol.HostInstruction{}, by.problem
	}
	return t.Instruction(by.variables)
}

// credentials reads the Secrets that tasks of a machine name, by the ID of the task. Only a task that has not ended needs one, and only a Secret with the label is read for it.
func (r *Reconciler) credentials(ctx context.Context, machine *infrav1.DroverMachine) (map[string]credential, error) {
	all := map[string]credential{}
	for _, task := range machine.Spec.Tasks {
		if task.Etcd == nil || task.Etcd.S3 == nil || task.Etcd.S3.CredentialsSecretName == "" || stateOf(machine.Status.Tasks, task.ID).State.Ended() {
			continue
		}
		secret := &corev1.Secret{}
		name := types.NamespacedName{Namespace: machine.Namespace, Name: task.Etcd.S3.CredentialsSecretName}
		switch err := r.Live.Get(ctx, name, secret); {
		case apierrors.IsNotFound(err):
			all[task.ID] = credential{problem: fmt.Errorf("there is no Secret %s, which credentialsSecretName of the DroverCluster names", name.Name)}
		case err != nil:
			return nil, fmt.Errorf("read Secret %s: %w", name, err)
		default:
			all[task.ID] = credentialOf(secret)
		}
	}
	return all, nil
}

// credentialOf returns what a Secret has. It is pure. Its error holds none of that.
func credentialOf(secret *corev1.Secret) credential {
	if secret.Labels[provisionv1.LabelUse] != "true" {
		return credential{problem: fmt.Errorf("the Secret %s has not the label %s: \"true\", without which no host is given it", secret.Name, provisionv1.LabelUse)}
	}
	variables := map[string]string{}
	for key, variable := range map[string]string{"accessKey": protocol.EnvS3AccessKey, "secretKey": protocol.EnvS3SecretKey, "ca.crt": protocol.EnvS3CA} {
		value := strings.TrimSpace(string(secret.Data[key])) // files that a user makes it of end with a line feed
		switch {
		case value != "":
			variables[variable] = value
		case key != "ca.crt":
			return credential{problem: errors.New("the Secret " + secret.Name + " has no key " + key)}
		}
	}
	return credential{variables: variables}
}
