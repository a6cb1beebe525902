// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// HubPrefix is the prefix that a member adds to the names of the hub's own users and groups.
const HubPrefix = "hub:"

// ErrNoWay is returned when no kubeconfig entry points to the member.
var ErrNoWay = errors.New("no context of the kubeconfig leads to it")

// MemberConfig returns the client configuration for the member. If memberContext, the value of --member-context, is
// set, MemberConfig uses that context. Otherwise it uses a context whose server is the member's path on the hub. If no
// such context exists, MemberConfig uses a context for another path on the hub and replaces that path with the member's
// path. base is the address of the hub's proxy, or "" if the address is not known.
func (o *Options) MemberConfig(memberContext, base, workspace, cluster string) (*rest.Config, error) {
	raw, err := o.RawConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if memberContext != "" {
		if raw.Contexts[memberContext] == nil {
			return nil, fmt.Errorf("context %s is not in the kubeconfig: \"kubectl config get-contexts\" lists the contexts",
				memberContext)
		}
		return o.contextConfig(raw, memberContext)
	}
	current := cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)
	name, server, err := wayTo(raw, base, current, workspace, cluster)
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

// BindMemberContext adds the flag --member-context.
func (o *Options) BindMemberContext(c *cobra.Command, value *string, usage string) {
	c.Flags().StringVar(value, "member-context", "", usage)
	Complete(c, "member-context", o.CompleteContexts)
}

// asInMember replaces the impersonated user's name on the hub with the user's name in the member.
func asInMember(as *rest.ImpersonationConfig) {
	if as.UserName != "" {
		as.UserName = HubPrefix + as.UserName
	}
	for i := range as.Groups {
		as.Groups[i] = HubPrefix + as.Groups[i]
	}
}

// contextConfig returns the client configuration for one context, including the impersonation that the flags specify.
func (o *Options) contextConfig(raw clientcmdapi.Config, name string) (*rest.Config, error) {
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

// wayTo returns a context that points to the hub, and the URL of the member's path on that hub. It prefers the current
// context, then a context for this member, then any context for the hub. wayTo ignores contexts that do not point to
// the hub's proxy, because another hub may have a Cluster with the same name. If the proxy's address is not known and
// contexts for several hubs match, wayTo returns an error.
func wayTo(raw clientcmdapi.Config, hub, current, workspace, cluster string) (context, server string, err error) {
	path := MemberPath(workspace, cluster)
	base := func(name string) (string, bool) {
		at, found := HubBase(ServerOf(&raw, name))
		return at, found && (hub == "" || at == hub)
	}
	if at, found := base(current); found {
		return current, at + path, nil
	}
	var exact, beside []string
	for _, name := range slices.Sorted(maps.Keys(raw.Contexts)) {
		at, found := base(name)
		switch {
		case found && ServerOf(&raw, name) == at+path:
			exact = append(exact, name)
		case found:
			beside = append(beside, name)
		}
	}
	if len(exact) == 0 {
		exact = beside
	}
	if len(exact) == 0 {
		return "", "", fmt.Errorf("%w: add a context whose server is https://<the hub's address>%s, or use --member-context",
			ErrNoWay, path)
	}
	first, _ := base(exact[0])
	for _, name := range exact {
		if at, _ := base(name); at != first {
			return "", "", fmt.Errorf("%w unambiguously: contexts %s lead to several hubs: choose one with --member-context",
				ErrNoWay, strings.Join(exact, ", "))
		}
	}
	return exact[0], first + path, nil
}

// ThroughHub reports whether a server URL points to the member's path on the hub whose proxy has the address base.
func ThroughHub(server, base, workspace, cluster string) bool {
	return base != "" && strings.TrimRight(server, "/") == base+MemberPath(workspace, cluster)
}
