// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
)

// phase is the progress of a change to the Deployment.
type phase string

const (
	// pending means that the hub has sent a Deployment, but the leader has not started the change.
	pending phase = "pending"
	// applying means that the previous Deployment is stored. The Deployment is about to be changed, or it has been
	// changed and is being watched.
	applying phase = "applying"
	// done means that the change has been rolled out, or that another client has since changed the Deployment.
	done phase = "done"
	// failed means that the change did not become ready, and that the previous Deployment will be restored.
	failed phase = "failed"
	// undone means that the change failed, and that the previous Deployment has been restored.
	undone phase = "undone"
	// rejected means that the API server rejected the change.
	rejected phase = "rejected"
)

// Keys of the Secret that stores the record.
const (
	keyPhase    = "phase"
	keyDigest   = "digest"
	keyWanted   = "wanted"
	keyFrom     = "from"
	keyPrevious = "previous"
	keyStarted  = "started"
	keyMessage  = "message"
)

// record is the content of the Secret. It describes a change to the Deployment. Any replica that becomes the leader can
// continue this change.
type record struct {
	Phase phase
	// Wanted is the JSON of the Deployment that the hub sent. Digest is the digest of this Deployment.
	Digest string
	Wanted []byte
	// From is the Deployment's digest at the start of the change. If the Deployment's digest is neither From nor
	// Digest, another client wrote the Deployment.
	From string
	// Previous is the JSON of the Deployment to restore if the change fails.
	Previous []byte
	// Started is the time when the change started, according to the clock of the replica that was the leader at that
	// time.
	Started time.Time
	// Message explains why the change failed.
	Message string
}

func (r record) previousDigest() string {
	d := appsv1.Deployment{}
	if json.Unmarshal(r.Previous, &d) != nil {
		return ""
	}
	return digestOf(&d)
}

// refused returns the record to store after the API server has rejected Wanted. If the rejected change replaced an
// unfinished change, the new record restores the Deployment that the unfinished change would have restored, unless
// the API server has just rejected that Deployment.
func (r record) refused(message string) record {
	r.Phase, r.Message, r.Wanted = rejected, message, nil
	if before := r.previousDigest(); before != r.From && before != r.Digest {
		r.Phase = failed
	}
	return r
}

type store struct{ secrets *kube.Secrets }

// read returns the record and the Secret that stores the record. If there is no Secret, both results are zero.
func (s store) read(ctx context.Context) (record, *corev1.Secret, error) {
	secret, err := s.secrets.Get(ctx, protocol.DeploymentSecret)
	if apierrors.IsNotFound(err) {
		return record{}, nil, nil
	}
	if err != nil {
		return record{}, nil, err
	}
	d := secret.Data
	started, _ := time.Parse(time.RFC3339, string(d[keyStarted])) // a missing time means that the change started long ago
	return record{
		Phase: phase(d[keyPhase]), Digest: string(d[keyDigest]), Wanted: d[keyWanted], From: string(d[keyFrom]),
		Previous: d[keyPrevious], Started: started, Message: string(d[keyMessage]),
	}, secret, nil
}

// write replaces the record, unless the Secret has changed since it was read.
func (s store) write(ctx context.Context, r record, secret *corev1.Secret) error {
	data := map[string][]byte{keyPhase: []byte(r.Phase), keyDigest: []byte(r.Digest)}
	for key, value := range map[string][]byte{keyWanted: r.Wanted, keyFrom: []byte(r.From), keyPrevious: r.Previous,
		keyMessage: []byte(r.Message)} {
		if len(value) > 0 {
			data[key] = value
		}
	}
	if !r.Started.IsZero() {
		data[keyStarted] = []byte(r.Started.UTC().Format(time.RFC3339))
	}
	put := s.secrets.Update
	if secret == nil {
		put, secret = s.secrets.Create, &corev1.Secret{Type: corev1.SecretTypeOpaque,
			ObjectMeta: metav1.ObjectMeta{Name: protocol.DeploymentSecret, Labels: protocol.AgentLabels()}}
	}
	secret.Data = data
	if _, err := put(ctx, secret); err != nil {
		return fmt.Errorf("store deployment: %w", err)
	}
	return nil
}

// maxConflicts is the maximum number of attempts to write the record if other replicas write it at the same time.
const maxConflicts = 10

// want stores a Deployment that the hub has sent. The new change replaces a change that is in progress. If the new
// change fails, the Deployment from before both changes is restored.
func (s store) want(ctx context.Context, digest string, wanted []byte) error {
	for range maxConflicts {
		r, secret, err := s.read(ctx)
		if err != nil {
			return err
		}
		if r.Digest == digest && r.Phase != done {
			return nil // the change is in progress or has failed
		}
		next := record{Phase: pending, Digest: digest, Wanted: wanted}
		if r.Phase == applying || r.Phase == failed || r.Phase == pending {
			next.Previous = r.Previous
		}
		err = s.write(ctx, next, secret)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return errors.New("store deployment: other replicas keep writing the record: try again")
}
