// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
)

// managerNamespace is the namespace of the manager, unless an administrator chose another one.
const managerNamespace = "drover-system"

// publishable matches valid published addresses. They become part of commands that users copy into shells.
var publishable = regexp.MustCompile(`^https://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]+)?$`)

// published returns the addresses that the manager of a hub publishes in a ConfigMap. It returns none if the user is
// not allowed to read the ConfigMap. Only the manager and administrators of the hub can write the ConfigMap. The
// addresses are therefore as trustworthy as the API server that returned them, which may belong to a member.
func published(ctx context.Context, h *cli.Hub) []string {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	found := &corev1.ConfigMap{}
	if h.Get(ctx, client.ObjectKey{Namespace: managerNamespace, Name: trust.AuthorityConfigMap}, found) != nil {
		return nil
	}
	return publishedIn(found)
}

// publishedIn returns the addresses in the ConfigMap. It omits values that a manager would not publish.
func publishedIn(found *corev1.ConfigMap) []string {
	var all []string
	for _, server := range strings.Fields(found.Data[protocol.KeyServers]) {
		if url, err := login.ParseURL(server); err == nil && publishable.MatchString(url) {
			all = append(all, url)
		}
	}
	return all
}

// publishedAt returns the addresses that the API server of a context publishes. It returns none if the context is known
// to belong to a hub with another address or to a member.
func publishedAt(ctx context.Context, o *cli.Options, raw *clientcmdapi.Config, name string) []string {
	if raw.Contexts[name] == nil || cli.BaseOf(raw, name) != "" || cli.MarkOf(raw, name).Hub != "" {
		return nil
	}
	quick := *o
	quick.HubName, quick.Overrides.CurrentContext = "", name
	if timeout := quick.Overrides.Timeout; timeout == "" || timeout == "0" {
		quick.Overrides.Timeout = probeLimit.String()
	}
	h, err := quick.Hub()
	if err != nil {
		return nil
	}
	return published(ctx, h)
}

// origin returns the context that is current when the user selects a member, if the context's API server publishes the
// address of the session's hub. This does not prove that the context points to the hub. origin returns "" if the
// kubeconfig already has a context for that hub.
func (o *options) origin(ctx context.Context, session *login.Session) string {
	raw, err := o.Loading.GetStartingConfig()
	if err != nil {
		return ""
	}
	name := cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)
	if hub, err := cli.NamedHub(raw, session.Issuer); err == nil && cli.LeadsToHub(raw, hub) {
		return ""
	}
	if !slices.Contains(publishedAt(ctx, o.Options, raw, name), session.Issuer) {
		return ""
	}
	return name
}

// publishedSession returns an error that names the user's session for a hub if the API server of the current context
// publishes the address of that hub. The kubeconfig does not contain the address. The session itself is not used: the
// API server may belong to a member, which must not choose the hub that a command acts on. publishedSession returns nil
// if there is no such session, or if flags choose the user.
func (o *options) publishedSession(ctx context.Context) error {
	store, err := sessions()
	if err != nil {
		return err
	}
	all, err := store.List()
	if err != nil || len(all) == 0 || o.HubName != "" || o.Overrides.ClusterInfo.Server != "" || choosesUser(o.Options) {
		return nil
	}
	raw, err := o.Loading.GetStartingConfig()
	if err != nil {
		return nil
	}
	current := cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)
	for _, url := range publishedAt(ctx, o.Options, raw, current) {
		if _, err := store.Load(url); err == nil {
			return fmt.Errorf("context %s does not say which hub is meant. Its API server publishes the address %s, where you "+
				"are signed in: add --hub=%s if this is your hub", cli.Plain(current), url, url)
		}
	}
	return nil
}
