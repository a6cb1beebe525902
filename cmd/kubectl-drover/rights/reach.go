// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// errNoWay says that no entry of the kubeconfig leads to the member.
var errNoWay = errors.New("no entry of the kubeconfig leads to it")

// memberConfig returns the way to the member. That is the context that --member-context names, or a context whose
// server is the member's path at the hub, or one whose server is another path at the hub, changed to the member's.
func (o *options) memberConfig(workspace, cluster string) (*rest.Config, error) {
	raw, err := o.Kubeconfig().RawConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if o.memberContext != "" {
		if raw.Contexts[o.memberContext] == nil {
			return nil, fmt.Errorf("context %s is not in the kubeconfig: kubectl config get-contexts lists those that are", o.memberContext)
		}
		return o.contextConfig(raw, o.memberContext)
	}
	name, server, err := wayTo(raw, cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext), workspace, cluster)
	if err != nil {
		return nil, err
	}
	config, err := o.contextConfig(raw, name)
	if err != nil {
		return nil, err
	}
	config.Host = server
	asInMember(&config.Impersonate)
	return config, nil
}

// asInMember turns the user whom the caller impersonates on the hub into that user's name in the member.
func asInMember(as *rest.ImpersonationConfig) {
	if as.UserName != "" {
		as.UserName = hubPrefix + as.UserName
	}
	for i := range as.Groups {
		as.Groups[i] = hubPrefix + as.Groups[i]
	}
}

// contextConfig returns one context of the kubeconfig, with the impersonation that the flags ask for.
func (o *options) contextConfig(raw clientcmdapi.Config, name string) (*rest.Config, error) {
	overrides := &clientcmd.ConfigOverrides{CurrentContext: name, Timeout: o.Overrides.Timeout}
	overrides.AuthInfo.Impersonate = o.Overrides.AuthInfo.Impersonate
	overrides.AuthInfo.ImpersonateGroups = o.Overrides.AuthInfo.ImpersonateGroups
	overrides.AuthInfo.ImpersonateUID = o.Overrides.AuthInfo.ImpersonateUID
	config, err := clientcmd.NewNonInteractiveClientConfig(raw, name, overrides, o.Loading).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read context %s of the kubeconfig: %w", name, err)
	}
	o.Patient(config)
	return config, nil
}

// wayTo finds a context at the hub, and its server for the member: the current context if it leads to the hub, or else
// a context that leads to this member, or else any context at the hub. It takes none if contexts of several hubs would
// do.
func wayTo(raw clientcmdapi.Config, current, workspace, cluster string) (context, server string, err error) {
	path := cli.MemberPath(workspace, cluster)
	base := func(name string) (string, bool) {
		if c := raw.Contexts[name]; c != nil && raw.Clusters[c.Cluster] != nil {
			return cli.HubBase(raw.Clusters[c.Cluster].Server)
		}
		return "", false
	}
	if at, found := base(current); found {
		return current, at + path, nil
	}
	var exact, beside []string
	for _, name := range slices.Sorted(maps.Keys(raw.Contexts)) {
		at, found := base(name)
		switch {
		case found && strings.TrimRight(raw.Clusters[raw.Contexts[name].Cluster].Server, "/") == at+path:
			exact = append(exact, name)
		case found:
			beside = append(beside, name)
		}
	}
	if len(exact) == 0 {
		exact = beside
	}
	if len(exact) == 0 {
		return "", "", fmt.Errorf("%w: add a context whose server is https://<the hub's address>%s, or name one with --member-context", errNoWay, path)
	}
	first, _ := base(exact[0])
	for _, name := range exact {
		if at, _ := base(name); at != first {
			return "", "", fmt.Errorf("%w for sure: contexts %s lead to several hubs: name one with --member-context", errNoWay, strings.Join(exact, ", "))
		}
	}
	return exact[0], first + path, nil
}

// throughHub reports whether a server is a hub's way to the member of that name.
func throughHub(server, workspace, cluster string) bool {
	u, err := url.Parse(server)
	return err == nil && strings.HasSuffix(strings.TrimRight(u.Path, "/"), cli.MemberPath(workspace, cluster))
}
