// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
)

const (
	// commandLimit is how long a command may take, and requestLimit one request of it, where --request-timeout says nothing.
	commandLimit = time.Minute
	requestLimit = 15 * time.Second
)

// hubClient reads a workspace with the caller's own rights.
type hubClient struct {
	client.WithWatch
	config    *rest.Config
	workspace string
}

func (o *options) kubeconfig() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.loading, &o.overrides)
}

// configOf returns the configuration of a client of the kubeconfig's context, which is to be that of the hub or of the member.
func configOf(loaded clientcmd.ClientConfig, whose string) (*rest.Config, error) {
	config, err := loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("read kubeconfig: there is none, or it names no cluster: give the %s's with --kubeconfig or KUBECONFIG", whose)
	} else if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w: name the %s's with --kubeconfig or --context", err, whose)
	}
	return config, nil
}

// hub is the one that the kubeconfig's context leads to.
func (o *options) hub() (*hubClient, error) {
	loaded := o.kubeconfig()
	config, err := configOf(loaded, "hub")
	if err != nil {
		return nil, err
	}
	workspace, _, err := loaded.Namespace()
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	patient(config)
	kinds := runtime.NewScheme()
	if err := errors.Join(v1.AddToScheme(kinds), corev1.AddToScheme(kinds)); err != nil {
		return nil, fmt.Errorf("make client of the hub: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("make client of the hub at %s: %w", config.Host, err)
	}
	return &hubClient{WithWatch: c, config: config, workspace: cmp.Or(o.workspace, workspace)}, nil
}

// patient limits requests in time and not in number.
func patient(config *rest.Config) {
	config.QPS = -1
	config.UserAgent = "kubectl-drover/" + version
	if config.Timeout == 0 {
		config.Timeout = requestLimit
	}
}

func (h *hubClient) inWorkspace() client.ListOption { return client.InNamespace(h.workspace) }

// gathered is what the hub says of a workspace.
type gathered struct {
	access.Workspace
	// cluster that is asked about.
	cluster *v1.Cluster
	// conditions Ready of the bindings.
	ready map[access.Reference]metav1.Condition
	// unread are what the caller may not read, and which right is missing.
	unread []string
}

// gather reads all that the answer is made of. What the caller may not read is named; the rest is still an answer.
func (h *hubClient) gather(ctx context.Context, cluster string) (*gathered, error) {
	clusters, templates, projects := &v1.ClusterList{}, &v1.RoleTemplateList{}, &v1.ProjectList{}
	ofClusters, ofProjects := &v1.ClusterRoleTemplateBindingList{}, &v1.ProjectRoleTemplateBindingList{}
	g := &gathered{ready: map[access.Reference]metav1.Condition{}}
	var refused []string
	for _, want := range []struct {
		list     client.ObjectList
		resource string
		options  []client.ListOption
	}{
		{clusters, "clusters", []client.ListOption{h.inWorkspace()}},
		{templates, "roletemplates", nil},
		{projects, "projects", []client.ListOption{h.inWorkspace()}},
		{ofClusters, "clusterroletemplatebindings", []client.ListOption{h.inWorkspace()}},
		{ofProjects, "projectroletemplatebindings", []client.ListOption{h.inWorkspace()}},
	} {
		err := h.List(ctx, want.list, want.options...)
		switch {
		case apierrors.IsForbidden(err):
			refused = append(refused, want.resource)
		case meta.IsNoMatchError(err):
			return nil, fmt.Errorf("list %s at %s: Drover is not installed there: name the hub with --kubeconfig or --context", want.resource, h.config.Host)
		case err != nil:
			return nil, fmt.Errorf("list %s: %w", want.resource, err)
		}
	}
	g.unread = h.missingRights(refused)
	g.Workspace = access.Workspace{
		Templates: access.Index(templates.Items), Clusters: map[string]labels.Set{}, Projects: map[string]*v1.Project{},
		ClusterBindings: ofClusters.Items, ProjectBindings: ofProjects.Items, Now: time.Now(),
	}
	for i := range projects.Items {
		g.Projects[projects.Items[i].Name] = &projects.Items[i]
	}
	g.noteReady()
	return g, h.find(ctx, cluster, clusters.Items, g)
}

// missingRights names the rights that the caller lacks, and the role that usually has them.
func (h *hubClient) missingRights(resources []string) []string {
	var rights, inWorkspace []string
	for _, resource := range resources {
		if resource == "roletemplates" {
			rights = append(rights, "list roletemplates."+v1.Group+" on the hub (ClusterRole drover-roletemplate-viewer has it)")
		} else {
			inWorkspace = append(inWorkspace, resource+"."+v1.Group)
		}
	}
	if len(inWorkspace) > 0 {
		rights = append(rights, fmt.Sprintf("list %s in namespace %s of the hub (ClusterRole view has it there)", strings.Join(inWorkspace, ", "), h.workspace))
	}
	return rights
}

// find makes the Clusters part of the answer, and looks for the one that is asked about, by its name if they cannot be listed.
func (h *hubClient) find(ctx context.Context, cluster string, list []v1.Cluster, g *gathered) error {
	for i := range list {
		g.Clusters[list[i].Name] = list[i].Labels
		if list[i].Name == cluster {
			g.cluster = &list[i]
		}
	}
	if g.cluster != nil {
		return nil
	}
	found := &v1.Cluster{}
	err := h.Get(ctx, client.ObjectKey{Namespace: h.workspace, Name: cluster}, found)
	switch {
	case err == nil:
		g.cluster, g.Clusters[cluster] = found, found.Labels
		return nil
	case apierrors.IsForbidden(err):
		return fmt.Errorf("read Cluster %s/%s: you may not: ask for the right to %s", h.workspace, cluster, strings.Join(h.missingRights([]string{"clusters"}), ""))
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("read Cluster %s/%s: %w", h.workspace, cluster, err)
	case len(list) == 0:
		return fmt.Errorf("cluster %s does not exist in workspace %s, nor does any other: name the workspace with -w", cluster, h.workspace)
	}
	return fmt.Errorf("cluster %s does not exist in workspace %s: there are %s; name another workspace with -w",
		cluster, h.workspace, strings.Join(slices.Sorted(maps.Keys(g.Clusters)), ", "))
}

func (g *gathered) noteReady() {
	note := func(kind string, object client.Object, status v1.DeliveryStatus) {
		if c := meta.FindStatusCondition(status.Conditions, v1.ConditionReady); c != nil {
			g.ready[access.Reference{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}] = *c
		}
	}
	for i := range g.ClusterBindings {
		note(access.KindClusterBinding, &g.ClusterBindings[i], g.ClusterBindings[i].Status)
	}
	for i := range g.ProjectBindings {
		note(access.KindProjectBinding, &g.ProjectBindings[i], g.ProjectBindings[i].Status)
	}
}

// neverJoined says that there is no member behind a Cluster yet, so that nothing can be asked and no way leads to it.
func (g *gathered) neverJoined() error {
	if g.cluster.Status.ClusterUID != "" {
		return nil
	}
	return fmt.Errorf("it has never joined the hub: run, in the cluster that is to be it, the command that Secret %s of the workspace has", g.cluster.Name+v1.RegistrationSecretSuffix)
}

// away says why the member cannot be asked through the hub at present.
func (g *gathered) away() error {
	c := meta.FindStatusCondition(g.cluster.Status.Conditions, v1.ConditionConnected)
	switch {
	case c == nil:
		return errors.New("it has not connected yet: kubectl describe cluster " + g.cluster.Name + " says what it waits for")
	case c.Status != metav1.ConditionTrue:
		return fmt.Errorf("it is not connected: %s: %s", c.Reason, c.Message)
	}
	return nil
}
