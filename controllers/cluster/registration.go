// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// register writes the registration Secret, which contains the token in force and the agent's manifest. While an agent
// is about to reconnect, register does not update the manifest. The manifest is not needed until then, and comparing
// manifests takes half the time of a reconcile.
func (r *Reconciler) register(ctx context.Context, in *input, update *status.Update, returning bool) error {
	if in.tooMany > 0 {
		return nil // the status reports the problem
	}
	made := false
	// the cache might not contain a token that was just created
	if in.token, made = decideToken(in); in.secret == nil || made {
		var err error
		if in.secret, in.foreignSecret, err = registration.SecretOf(ctx, r.Live, in.cluster); err != nil || in.foreignSecret {
			return err // the status reports the foreign Secret
		}
		in.token, made = decideToken(in)
	}
	if in.token.Value == "" {
		return nil // the user's token does not exist yet; the status reports this
	}
	if returning && !made && in.secret != nil && in.token.Used == registration.ReadToken(in.secret, 0).Used {
		return nil
	}
	want, err := r.wantedSecret(in)
	if err != nil || in.secret != nil && registration.UpToDate(in.secret, want) {
		return err
	}
	// WriteSecret returns an error if the Secret was created or changed in the meantime. The next reconcile then reads
	// it again.
	if err := owned.WriteSecret(ctx, r.Client, in.secret, want); err != nil {
		return fmt.Errorf("write Secret %s: %w", registration.RegistrationSecret(in.name), err)
	}
	if made && in.identity == nil { // otherwise no agent needs the token
		update.Event(status.Event{
			Reason: v1.ReasonTokenCreated, Action: "CreateToken", Message: in.token.Announcement(in.cluster),
		})
	}
	return nil
}

// decideToken returns the token in force, and reports whether the token is new. It has no side effects, and is
// deterministic unless it creates a token.
//
// A token stays in force until a user replaces it, either in the Secret that the spec refers to, or by deleting the
// registration Secret. Once an agent has joined or is joining, only deleting the registration Secret has an effect. The
// reason is that an agent that joins with another token replaces the first agent, and users who can change the spec are
// not necessarily allowed to do that. If the agent that used a token has been revoked, the token is useless and is
// replaced.
func decideToken(in *input) (registration.Token, bool) {
	fresh := func(value string) registration.Token {
		return registration.Token{Value: value, Created: in.now, TTL: in.cluster.Spec.Registration.TokenTTL.Duration}
	}
	token, made := registration.TokenOf(in.secret, in.cluster), false
	valid := registration.ValidToken(token.Value) && !token.Created.IsZero()
	switch {
	case valid && (in.identity != nil || token.Joining(in.now)):
	case in.cluster.Spec.Registration.TokenSecretRef != nil:
		if token.Value != in.chosen.value {
			token, made = fresh(in.chosen.value), in.chosen.value != ""
		}
	case !valid, token.Used && in.identity == nil:
		token, made = fresh(registration.NewToken()), true
	}
	if in.identity != nil && in.identity.TokenHash == registration.HashToken(token.Value) {
		token.Used = true
	}
	return token, made
}

// wantedSecret returns the desired registration Secret for the token in force.
func (r *Reconciler) wantedSecret(in *input) (*corev1ac.SecretApplyConfiguration, error) {
	manifest, err := r.manifests.Manifest(r.manifestInput(in))
	if err != nil {
		return nil, err
	}
	url := registration.ManifestURL(in.settings.Servers[0], in.token.Value)
	return registration.ApplySecret(in.cluster, in.token, registration.Content{
		ManifestURL: url,
		Command:     registration.Command(url, in.cluster.Spec.Agent.Trust, in.settings.CABundle),
		Manifest:    manifest,
	}), nil
}

// manifestInput returns everything that the agent's manifest depends on.
func (r *Reconciler) manifestInput(in *input) registration.ManifestInput {
	agent := registration.WithDefaults(in.cluster.Spec.Agent, r.Agent)
	return registration.ManifestInput{Image: r.image(in), Trust: agent.Trust, Agent: agent, APIServer: in.cluster.Spec.AuthorizedEndpoint.ByAPIServer(), Token: in.token.Value, Settings: in.settings}
}

// label sets the finalizer, and the labels for the facts that the agent has reported. It writes nothing if they are
// already set.
func (r *Reconciler) label(ctx context.Context, in *input) error {
	facts := factLabels(in)
	if labels.ValidatedSetSelector(facts).Matches(labels.Set(in.cluster.Labels)) && slices.Contains(in.cluster.Finalizers, v1.FinalizerUninstall) {
		return nil
	}
	return r.applyMetadata(ctx, in.cluster, facts, []string{v1.FinalizerUninstall})
}
