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

// etcd returns the instruction for an etcd task.
func etcd(in taskInput, task infrav1.MachineTask) (protocol.HostInstruction, error) {
	return kubeadm.Instruction(task, in.buckets[task.ID])
}

// buckets reads the Secrets that a machine's unfinished tasks refer to, and returns their content by task ID. It uses
// only Secrets with the required label.
func (r *Reconciler) buckets(ctx context.Context, machine *infrav1.DroverMachine) (map[string]kubeadm.Bucket, error) {
	all := map[string]kubeadm.Bucket{}
	for _, task := range machine.Spec.Tasks {
		if task.Etcd == nil || task.Etcd.S3 == nil || task.Etcd.S3.CredentialsSecretName == "" || stateOf(machine.Status.Tasks, task.ID).State.Ended() {
			continue
		}
		secret := &corev1.Secret{}
		name := types.NamespacedName{Namespace: machine.Namespace, Name: task.Etcd.S3.CredentialsSecretName}
		switch err := r.Live.Get(ctx, name, secret); {
		case apierrors.IsNotFound(err):
			all[task.ID] = kubeadm.Bucket{Problem: fmt.Errorf(
				"there is no Secret %s, which credentialsSecretName of the DroverCluster names", name.Name)}
		case err != nil:
			return nil, fmt.Errorf("read Secret %s: %w", name, err)
		default:
			all[task.ID] = bucketOf(secret)
		}
	}
	return all, nil
}

// bucketOf returns the credentials in a Secret. If the Secret cannot be used, the result contains the problem, which
// never contains credentials. bucketOf has no side effects.
func bucketOf(secret *corev1.Secret) kubeadm.Bucket {
	if secret.Labels[provisionv1.LabelUse] != "true" {
		return kubeadm.Bucket{Problem: fmt.Errorf(
			"the Secret %s does not have the label %s: \"true\", without which no host is given its content", secret.Name, provisionv1.LabelUse)}
	}
	variables := map[string]string{}
	for key, variable := range map[string]string{"accessKey": protocol.EnvS3AccessKey, "secretKey": protocol.EnvS3SecretKey, "ca.crt": protocol.EnvS3CA} {
		value := strings.TrimSpace(string(secret.Data[key])) // values from files end with a line feed
		switch {
		case value != "":
			variables[variable] = value
		case key != "ca.crt":
			return kubeadm.Bucket{Problem: errors.New("the Secret " + secret.Name + " has no key " + key)}
		}
	}
	return kubeadm.Bucket{Credentials: variables}
}
