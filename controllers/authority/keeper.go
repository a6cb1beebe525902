// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package authority reconciles the hub's certificate authority.
//
// It creates the first authority, replaces an authority without disconnecting clients, and retires the old authority.
package authority

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
)

// maxNote is the maximum length of an event's text, in bytes. The API server enforces this limit.
const maxNote = 1024

// Keeper decides when to change the hub's authority, and writes the new state to the Secret. It runs on the leader.
type Keeper struct {
	Client   client.Client
	Recorder events.EventRecorder
	// Secret is the name of the Secret that stores the authority.
	Secret types.NamespacedName
	// Member returns the state of a connected member.
	Member func(types.NamespacedName) members.State
	// Settings returns the settings that agents should have.
	Settings func() protocol.Settings
	Now      func() time.Time

	lastWait string // text of the last event that recordWait emitted; used only by the single worker
}

// Reconcile performs the next step of a rotation if one is due. It does not create a missing Secret, because the loader
// does so.
func (k *Keeper) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	secret := &corev1.Secret{}
	if err := k.Client.Get(ctx, k.Secret, secret); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read the hub's CA: %w", err)
	} else if err != nil {
		return ctrl.Result{}, nil // the creation of the Secret triggers another reconcile
	}
	in, err := k.gather(ctx, secret)
	if err != nil {
		return ctrl.Result{}, err
	}
	decision, err := trust.Decide(in)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("secret %s: %w", k.Secret, err)
	}
	switch decision.Step {
	case trust.StepWait:
		k.recordWait(secret, in, decision)
		return ctrl.Result{RequeueAfter: wait(decision.LookAt, in.Now)}, nil
	case trust.StepCreate: // the Secret was emptied; no agent could connect with a new authority
		return ctrl.Result{}, fmt.Errorf("secret %s: %w", k.Secret, errEmptied)
	default:
		return ctrl.Result{}, k.take(ctx, secret, in, decision) // the write triggers another reconcile
	}
}

// take performs a step with a single write.
func (k *Keeper) take(ctx context.Context, secret *corev1.Secret, in trust.Input, decision trust.Decision) error {
	next, err := trust.Apply(in.State, decision.Step, in.Now)
	if err != nil {
		return err
	}
	trust.WriteSecret(secret, next)
	switch decision.Step {
	case trust.StepChange:
		secret.Annotations[v1.AnnotationRotated] = secret.Annotations[v1.AnnotationRotate]
	case trust.StepRevoke:
		// the user's request applies only to this rotation, not to later rotations
		delete(secret.Annotations, v1.AnnotationRetireNow)
	default:
	}
	if err := k.Client.Update(ctx, secret); err != nil { // the resource version protects against a second leader
		return fmt.Errorf("write the hub's CA: %w", err)
	}
	k.Recorder.Eventf(secret, nil, corev1.EventTypeNormal, string(decision.Step), "ChangeAuthority",
		"%s: %s", decision.Step, decision.Why)
	return nil
}

// errEmptied is returned if the authority has been removed from the Secret.
var errEmptied = errors.New("it no longer contains the authority; delete it, and the manager writes the authority that it still holds again")

// recordWait emits an event that explains why a due step has to wait. It does not repeat the previous message.
func (k *Keeper) recordWait(secret *corev1.Secret, in trust.Input, decision trust.Decision) {
	if (in.Requested || in.Revoked) && decision.Why != k.lastWait {
		k.lastWait = decision.Why
		k.Recorder.Eventf(secret, nil, corev1.EventTypeNormal, string(decision.Step), "ChangeAuthority", "%s", protocol.Cut(decision.Why, maxNote))
	}
}

func (k *Keeper) gather(ctx context.Context, secret *corev1.Secret) (trust.Input, error) {
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	state, err := trust.ReadSecret(secret)
	if err != nil {
		return trust.Input{}, err
	}
	asked := secret.Annotations[v1.AnnotationRotate]
	in := trust.Input{
		State:     state,
		Requested: asked != "" && asked != secret.Annotations[v1.AnnotationRotated],
		Revoked:   asked != "" && asked == secret.Annotations[v1.AnnotationRetireNow] && len(state.Old)+len(state.Bridges) > 0,
		Now:       k.Now(),
	}
	if in.Revoked {
		in.Missing, err = k.missing(ctx, state)
	}
	return in, err
}

// missing returns the names of the connected members that have not confirmed the bundle with the current authority. It
// includes Clusters whose trust mode is System: their agents trust the certificates specified in the manifest, which
// may be older than the spec.
func (k *Keeper) missing(ctx context.Context, state trust.State) ([]string, error) {
	want := k.Settings()
	if !containsCertificate(want.CABundle, state.Active.Cert) {
		return []string{"this manager itself"}, nil // the Secret is newer than the loaded state
	}
	digest := want.Digest()
	names, err := k.agents(ctx)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range names {
		if member := k.Member(name); member.Connected() && (member.Report == nil || member.Report.SettingsDigest != digest) {
			missing = append(missing, name.String())
		}
	}
	return missing, nil
}

// agents returns the names of all members that have an agent: Clusters and Hosts.
func (k *Keeper) agents(ctx context.Context) ([]types.NamespacedName, error) {
	var names []types.NamespacedName
	for _, kind := range []string{v1.SecretKindAgent, v1.SecretKindHostAgent} {
		var agents corev1.SecretList
		if err := k.Client.List(ctx, &agents, client.MatchingLabels{v1.LabelSecretKind: kind}); err != nil {
			return nil, fmt.Errorf("list agents: %w", err)
		}
		for i := range agents.Items {
			name := types.NamespacedName{Namespace: agents.Items[i].Namespace, Name: agents.Items[i].Labels[v1.LabelCluster]}
			if kind == v1.SecretKindHostAgent {
				name.Name = protocol.HostMember(agents.Items[i].Labels[v1.LabelHost])
			}
			names = append(names, name)
		}
	}
	return names, nil
}

func containsCertificate(bundle string, cert []byte) bool {
	have, err := protocol.CertificateChecksums([]byte(bundle))
	if err != nil {
		return false
	}
	want, err := protocol.CertificateChecksums(cert)
	if err != nil {
		return false
	}
	return slices.Contains(have, want[0])
}

func wait(until, now time.Time) time.Duration {
	const atMost = 24 * time.Hour // check at least once a day
	if until.IsZero() {
		return atMost
	}
	return max(time.Second, min(until.Sub(now), atMost))
}
