// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
)

// managerNamespace is the namespace of the manager, unless an administrator chose another one.
const managerNamespace = "drover-system"

// published returns the addresses that the manager of a hub publishes in a ConfigMap. It returns none if the user may
// not read the ConfigMap. Only the manager and administrators of the hub can write it, so that the addresses are as
// trustworthy as the hub's API server.
func published(ctx context.Context, h *cli.Hub) []string {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	found := &corev1.ConfigMap{}
	if h.Get(ctx, client.ObjectKey{Namespace: managerNamespace, Name: trust.AuthorityConfigMap}, found) != nil {
		return nil
	}
	var all []string
	for _, server := range strings.Fields(found.Data[protocol.KeyServers]) {
		if url, err := login.ParseURL(server); err == nil {
			all = append(all, url)
		}
	}
	return all
}

// origin returns the context from which the user selects a member, and its server, if that context certainly leads to
// the API server of the session's hub. It returns "" if the kubeconfig already has a context for that hub.
func (o *options) origin(ctx context.Context, session *login.Session) (name, server string) {
	raw, err := o.Loading.GetStartingConfig()
	if err != nil {
		return "", ""
	}
	name = cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)
	if hub, err := cli.NamedHub(raw, session.Issuer); err == nil && cli.LeadsToHub(raw, hub) {
		return "", ""
	}
	if raw.Contexts[name] == nil || cli.BaseOf(raw, name) != "" || cli.MarkOf(raw, name).Hub != "" {
		return "", "" // the context belongs to a member or to another hub
	}
	quick := *o
	shared := *o.Options
	quick.Options = &shared
	if quick.Overrides.Timeout == "" || quick.Overrides.Timeout == "0" {
		quick.Overrides.Timeout = probeLimit.String()
	}
	h, err := quick.at(name)
	if err != nil || !slices.Contains(published(ctx, h), session.Issuer) {
		return "", ""
	}
	return name, cli.ServerOf(raw, name)
}

// sessionAt returns the session that the user has at one of the addresses that a hub publishes. It returns
// an error that matches login.ErrSignedOut if there is none.
func (o *options) sessionAt(ctx context.Context, urls []string) (*login.Session, error) {
	store, err := sessions()
	if err != nil {
		return nil, err
	}
	for _, url := range urls {
		if _, err := store.Load(url); err == nil {
			at := *o
			shared := *o.Options
			at.Options, shared.HubName = &shared, url
			return at.signedIn(ctx)
		}
	}
	return nil, login.ErrSignedOut
}
