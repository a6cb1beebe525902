// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// register makes the registration Secret hold the token in force and the manifest for it.
func (r *Reconciler) register(ctx context.Context, in *input, update *status.Update) error {
	if in.foreignSecret || in.tooMany > 0 {
		return nil // the status says so
	}
	made := false
	if in.token, made = decideToken(in); made { // not for a cache that lags behind the token that we made a moment ago
		if err := gatherSecret(ctx, in, r.Live); err != nil {
			return err
		}
		in.token, made = decideToken(in)
	}
	if in.token.Value == "" {
		return nil // the user's token is not there yet; the status says so
	}
	content, err := r.content(in)
	if err != nil {
		return err
	}
	want := registration.ApplySecret(in.cluster, in.token, content)
	if in.secret != nil && registration.UpToDate(in.secret, want) {
		return nil
	}
	if err := r.Client.Apply(ctx, want, fieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply Secret %s: %w", registration.RegistrationSecret(in.name), err)
	}
	if made && in.identity == nil { // else no agent needs it
		update.Event(status.Event{Reason: v1.ReasonTokenCreated, Action: "CreateToken", Message: fmt.Sprintf(
			"Created a join token that expires at %s; see Secret %s", in.token.Expires().UTC().Format("2006-01-02 15:04 MST"),
			registration.RegistrationSecret(in.name).Name)})
	}
	return nil
}

// decideToken returns the token in force and whether it is a new one. It is pure but for the randomness of a new token.
//
// A token stays until it is replaced: by the user in the Secret that the spec names, or by deleting the registration Secret. Once an agent has
// joined only the latter counts: an agent that joins with another token takes its place, and no field of the spec asks for that right.
// A token that was used by an agent that has been revoked since is of no use and is replaced here.
func decideToken(in *input) (registration.Token, bool) {
	ttl := in.cluster.Spec.Registration.TokenTTL.Duration
	fresh := func(value string) registration.Token {
		return registration.Token{Value: value, Created: in.now, TTL: ttl}
	}
	token := registration.Token{}
	if in.secret != nil {
		token = registration.ReadToken(in.secret, ttl)
	}
	made := false
	valid := registration.ValidToken(token.Value) && !token.Created.IsZero()
	switch {
	case in.identity != nil && valid:
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

// content of the registration Secret beside the token.
func (r *Reconciler) content(in *input) (registration.Content, error) {
	agent := in.cluster.Spec.Agent
	manifest, err := r.manifests.Manifest(r.manifestInput(in))
	if err != nil {
		return registration.Content{}, err
	}
	url := registration.ManifestURL(in.settings.Servers[0], in.token.Value)
	return registration.Content{
		ManifestURL: url,
		Command:     registration.Command(url, agent.Trust, in.settings.CABundle),
		Manifest:    manifest,
	}, nil
}

// manifestInput is what the agent's manifest depends on.
func (r *Reconciler) manifestInput(in *input) registration.ManifestInput {
	agent := in.cluster.Spec.Agent
	image := agent.Image
	if image == "" {
		image = r.AgentImage
	}
	return registration.ManifestInput{Image: image, Trust: agent.Trust, Agent: agent, Token: in.token.Value, Settings: in.settings}
}

// label sets the finalizer, and as labels what the agent found, if they are not there yet.
func (r *Reconciler) label(ctx context.Context, in *input) error {
	labels := factLabels(in)
	if containsAll(in.cluster.Labels, labels) && slices.Contains(in.cluster.Finalizers, v1.FinalizerUninstall) {
		return nil
	}
	return r.applyMetadata(ctx, in.cluster, labels, []string{v1.FinalizerUninstall})
}

func containsAll(have, want map[string]string) bool {
	for k, v := range want {
		if have[k] != v {
			return false
		}
	}
	return true
}
