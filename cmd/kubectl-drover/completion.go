// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

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

// completionLimit is how long a person waits for what they may type next.
const completionLimit = 5 * time.Second

// complete has the shell offer values of a flag.
func complete(c *cobra.Command, flag string, offers cobra.CompletionFunc) {
	cobra.CheckErr(c.RegisterFlagCompletionFunc(flag, offers)) // for a flag that does not exist only
}

// offer always offers the same values.
func offer(choices ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(choices, cobra.ShellCompDirectiveNoFileComp)
}

// beginning are the names that begin so. No file is meant.
func beginning(start string, names []string) ([]string, cobra.ShellCompDirective) {
	names = slices.DeleteFunc(slices.Sorted(slices.Values(names)), func(name string) bool { return !strings.HasPrefix(name, start) })
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}

// list lists the names of objects on the hub; none where that fails.
func (o *options) list(ctx context.Context, kind schema.GroupVersionKind, where func(*hubClient) []client.ListOption) []string {
	ctx, cancel := context.WithTimeout(ctx, completionLimit)
	defer cancel()
	h, err := o.hub()
	if err != nil {
		return nil
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := h.List(ctx, list, where(h)...); err != nil {
		return nil
	}
	var found []string
	for i := range list.Items {
		found = append(found, list.Items[i].Name)
	}
	return found
}

func inItsWorkspace(h *hubClient) []client.ListOption { return []client.ListOption{h.inWorkspace()} }
func inNone(*hubClient) []client.ListOption           { return nil }

// completeClusters offers the workspace's Clusters.
func (o *options) completeClusters(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	return beginning(start, o.list(c.Context(), v1.GroupVersion.WithKind("ClusterList"), inItsWorkspace))
}

// completePlans offers the workspace's Plans for the first argument.
func (o *options) completePlans(otherwise cobra.ShellCompDirective) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		found, _ := beginning(start, o.list(c.Context(), v1.GroupVersion.WithKind("PlanList"), inItsWorkspace))
		return found, otherwise
	}
}

// completeWorkspaces offers the hub's namespaces or, if the user may not list them, those that the kubeconfig names.
func (o *options) completeWorkspaces(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	found := o.list(c.Context(), corev1.SchemeGroupVersion.WithKind("NamespaceList"), inNone)
	if raw, err := o.kubeconfig().RawConfig(); err == nil && len(found) == 0 {
		for _, context := range raw.Contexts {
			found = append(found, context.Namespace)
		}
	}
	return beginning(start, slices.DeleteFunc(found, func(name string) bool { return name == "" }))
}

// completeNamespaces offers those of the member that --cluster names.
func (o *options) completeNamespaces(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), completionLimit)
	defer cancel()
	return beginning(start, o.memberNamespaces(ctx))
}

func (o *options) memberNamespaces(ctx context.Context) []string {
	h, err := o.hub()
	if err != nil {
		return nil
	}
	g := &gathered{cluster: &v1.Cluster{}}
	if err := h.Get(ctx, client.ObjectKey{Namespace: h.workspace, Name: o.cluster}, g.cluster); err != nil {
		return nil
	}
	m, err := o.reach(ctx, h, g)
	if err != nil {
		return nil
	}
	list, err := m.api.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	var found []string
	for i := range list.Items {
		found = append(found, list.Items[i].Name)
	}
	return found
}

// completeContexts offers those of the kubeconfig.
func (o *options) completeContexts(_ *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	raw, err := o.kubeconfig().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return beginning(start, slices.Collect(maps.Keys(raw.Contexts)))
}

// completeAction offers verbs for the argument at that place, and resources after it.
func completeAction(verbAt int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case verbAt:
			return beginning(start, []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})
		case verbAt + 1:
			return beginning(start, []string{"pods", "deployments.apps", "services", "secrets", "configmaps", "namespaces", "nodes"})
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
