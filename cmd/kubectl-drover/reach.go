// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

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
)

// errNoWay says that no entry of the kubeconfig leads to the member.
var errNoWay = errors.New("no entry of the kubeconfig leads to it")

// memberConfig is the way to the member: the context that is named; or one whose server is the member's path at the hub; or, where
// a server is another path at the hub, the member's beside it, as the same user.
func (o *options) memberConfig(workspace, cluster string) (*rest.Config, error) {
	raw, err := o.kubeconfig().RawConfig()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	if o.memberContext != "" {
		if raw.Contexts[o.memberContext] == nil {
			return nil, fmt.Errorf("context %s is not in the kubeconfig: kubectl config get-contexts lists those that are", o.memberContext)
		}
		return o.contextConfig(raw, o.memberContext)
	}
	name, server, err := wayTo(raw, cmp.Or(o.overrides.CurrentContext, raw.CurrentContext), workspace, cluster)
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
	overrides := &clientcmd.ConfigOverrides{CurrentContext: name, Timeout: o.overrides.Timeout}
	overrides.AuthInfo.Impersonate = o.overrides.AuthInfo.Impersonate
	overrides.AuthInfo.ImpersonateGroups = o.overrides.AuthInfo.ImpersonateGroups
	overrides.AuthInfo.ImpersonateUID = o.overrides.AuthInfo.ImpersonateUID
	config, err := clientcmd.NewNonInteractiveClientConfig(raw, name, overrides, o.loading).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read context %s of the kubeconfig: %w", name, err)
	}
	patient(config)
	return config, nil
}

// wayTo finds a context at the hub and what its server becomes for the member: the current one, if it leads to the hub; else one
// that leads to this member; else any at the hub. Where contexts of several hubs would do, none is taken.
func wayTo(raw clientcmdapi.Config, current, workspace, cluster string) (context, server string, err error) {
	path := memberPath(workspace, cluster)
	base := func(name string) (string, bool) {
		if c := raw.Contexts[name]; c != nil && raw.Clusters[c.Cluster] != nil {
			return hubBase(raw.Clusters[c.Cluster].Server)
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

// memberPath is where a hub serves a member's Kubernetes API.
func memberPath(workspace, cluster string) string {
	return "/k8s/clusters/" + workspace + "/" + cluster
}

// throughHub reports whether a server is a hub's way to the member of that name.
func throughHub(server, workspace, cluster string) bool {
	u, err := url.Parse(server)
	return err == nil && strings.HasSuffix(strings.TrimRight(u.Path, "/"), memberPath(workspace, cluster))
}

// hubBase is what stands before the paths that the hub serves Kubernetes' API at.
func hubBase(server string) (base string, atHub bool) {
	u, err := url.Parse(server)
	if err != nil {
		return "", false
	}
	for _, mark := range []string{"/k8s/clusters/", "/k8s/local"} {
		if before, _, found := strings.Cut(u.Path, mark); found {
			u.Path = before
			return u.String(), true
		}
	}
	return "", false
}
