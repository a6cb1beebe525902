// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// CompletionLimit is how long the shell waits for suggestions.
const CompletionLimit = 5 * time.Second

// Complete registers offers as the completion function for a flag's values.
func Complete(c *cobra.Command, flag string, offers cobra.CompletionFunc) {
	cobra.CheckErr(c.RegisterFlagCompletionFunc(flag, offers)) // fails only if the flag does not exist
}

// Offer returns a completion function that suggests fixed values.
func Offer(choices ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)
}

// Beginning returns the names that have the prefix start, and prevents the shell from completing file names.
func Beginning(start string, names []string) ([]string, cobra.ShellCompDirective) {
	names = slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(name string) bool {
		return !strings.HasPrefix(name, start)
	})
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// CompleteFiles completes file names.
func CompleteFiles(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// CompleteFolders completes folder names for the first argument.
func CompleteFolders(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// First restricts a completion function to the first argument.
func First(offers cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offers(c, args, start)
	}
}

// names returns the names of objects on the hub, or none if the objects cannot be listed.
func (o *Options) names(ctx context.Context, kind schema.GroupVersionKind, where ...func(*Hub) client.ListOption) []string {
	ctx, cancel := context.WithTimeout(ctx, CompletionLimit)
	defer cancel()
	h, err := o.HubToRead()
	if err != nil {
		return nil
	}
	options := Map(where, func(option func(*Hub) client.ListOption) client.ListOption { return option(h) })
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := h.List(ctx, list, options...); err != nil {
		return nil
	}
	return Map(list.Items, func(o metav1.PartialObjectMetadata) string { return o.Name })
}

// CompleteNames completes the names of objects of a Drover kind in the workspace.
func (o *Options) CompleteNames(kind string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
		return Beginning(start, o.names(c.Context(), v1.GroupVersion.WithKind(kind+"List"), (*Hub).InWorkspace))
	}
}

// CompleteKind completes the names of objects of any kind, in all namespaces.
func (o *Options) CompleteKind(kind schema.GroupVersionKind) cobra.CompletionFunc {
	kind.Kind += "List"
	return func(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
		return Beginning(start, o.names(c.Context(), kind))
	}
}

// CompleteAnywhere completes the names of objects of a Drover kind, in all namespaces.
func (o *Options) CompleteAnywhere(kind string) cobra.CompletionFunc {
	return func(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
		return Beginning(start, o.names(c.Context(), v1.GroupVersion.WithKind(kind+"List")))
	}
}

// CompleteWorkspaces completes the namespaces on the hub. If the user is not allowed to list them, it uses the
// namespaces in the kubeconfig.
func (o *Options) CompleteWorkspaces(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	found := o.names(c.Context(), corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if raw, err := o.Kubeconfig().RawConfig(); err == nil && len(found) == 0 {
		for _, context := range raw.Contexts {
			found = append(found, context.Namespace)
		}
	}
	return Beginning(start, slices.DeleteFunc(found, func(name string) bool { return name == "" }))
}

// CompleteContexts completes the contexts in the kubeconfig.
func (o *Options) CompleteContexts(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	raw, err := o.Kubeconfig().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return Beginning(start, slices.Collect(maps.Keys(raw.Contexts)))
}

// CompleteHubURLs completes the URLs of the hubs in the kubeconfig.
func (o *Options) CompleteHubURLs(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	raw, err := o.Kubeconfig().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var found []string
	for name := range raw.Contexts {
		if base := BaseOf(&raw, name); base != "" {
			found = append(found, base)
		}
	}
	return Beginning(start, found)
}

// CompleteHubs completes the contexts and URLs of the hubs in the kubeconfig.
func (o *Options) CompleteHubs(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
	raw, err := o.Kubeconfig().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	urls, _ := o.CompleteHubURLs(c, args, start)
	return Beginning(start, append(hubContexts(&raw), urls...))
}
