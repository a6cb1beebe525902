// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
)

// FieldManager is the field manager that the plugin uses to write objects on the hub.
const FieldManager = "kubectl-drover"

// Hub is a client for the hub with the caller's own rights.
type Hub struct {
	client.WithWatch
	Config    *rest.Config
	Workspace string
}

// Hub connects to the hub for a command that may make changes. It returns an error if the hub is only a guess. See
// FindHub.
func (o *Options) Hub() (*Hub, error) { return o.connect(false) }

// HubToRead connects to the hub for a read-only command. If the hub is only a guess, HubToRead prints which hub it is.
func (o *Options) HubToRead() (*Hub, error) { return o.connect(true) }

func (o *Options) connect(reads bool) (*Hub, error) {
	loaded, workspace, err := o.hubKubeconfig(reads)
	if err != nil {
		return nil, err
	}
	config, err := ConfigOf(loaded, "hub")
	if err != nil {
		return nil, err
	}
	if workspace == "" {
		if workspace, _, err = loaded.Namespace(); err != nil {
			return nil, fmt.Errorf("read kubeconfig: %w", err)
		}
	}
	o.Patient(config)
	kinds := runtime.NewScheme()
	if err := errors.Join(v1.AddToScheme(kinds), corev1.AddToScheme(kinds)); err != nil {
		return nil, fmt.Errorf("make client of the hub: %w", err)
	}
	c, err := client.NewWithWatch(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("make client of the hub at %s: %w", config.Host, err)
	}
	return &Hub{WithWatch: paged{c}, Config: config, Workspace: cmp.Or(o.Workspace, workspace)}, nil
}

// hubKubeconfig returns the kubeconfig with the hub's context as the current context. If this context has no namespace,
// hubKubeconfig also returns the workspace of the Cluster that the user's current context points to.
func (o *Options) hubKubeconfig(reads bool) (loaded clientcmd.ClientConfig, workspace string, err error) {
	loaded = o.Kubeconfig()
	raw, err := o.RawConfig()
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig: %w: select the hub with --kubeconfig", err)
	}
	if len(raw.Contexts) == 0 && o.HubName == "" {
		return loaded, "", nil // without a kubeconfig, a client in a pod uses the pod's own cluster
	}
	name, guessed, err := o.FindHub(&raw)
	if err == nil && guessed && !reads {
		err = ErrGuessed(name)
	}
	current := cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)
	if err != nil || name == current || raw.Contexts[name] == nil {
		return loaded, "", err
	}
	if belongs, _ := hubOfMember(&raw, current); belongs == name && raw.Contexts[name].Namespace == "" {
		workspace = workspaceOf(&raw, current)
	}
	if guessed {
		o.Say("The hub is the one of context %s.\n", Plain(name))
	}
	overrides := o.Overrides
	overrides.CurrentContext = name
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.Loading, &overrides), workspace, nil
}

// Say prints the hub that the command uses, or the user that it acts as. Only the first call prints a line. During
// shell completion, no line is printed.
func (o *Options) Say(format string, args ...any) {
	if o.says != nil {
		fmt.Fprintf(o.says, format, args...)
		o.says = nil
	}
}

// InWorkspace restricts a list to the selected workspace.
func (h *Hub) InWorkspace() client.ListOption { return client.InNamespace(h.Workspace) }

// OnHub calls do with a client for the hub and a context that is canceled after the given limit. See Hub.
func (o *Options) OnHub(c *cobra.Command, limit time.Duration, do func(context.Context, *Hub) error) error {
	return on(c, limit, o.Hub, do)
}

// ReadHub is like OnHub, but for read-only commands. See HubToRead.
func (o *Options) ReadHub(c *cobra.Command, limit time.Duration, do func(context.Context, *Hub) error) error {
	return on(c, limit, o.HubToRead, do)
}

func on(c *cobra.Command, limit time.Duration, connect func() (*Hub, error),
	do func(context.Context, *Hub) error) error {
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	h, err := connect()
	if err != nil {
		return err
	}
	return do(ctx, h)
}

// MadeByDrover returns an error unless Drover created the Secret for this Cluster or Host. This check is important
// because the content is applied in a cluster with full rights, or run as root on a machine.
func MadeByDrover(secret *corev1.Secret, owner client.Object, kind string) error {
	if found := registration.Foreign(secret, owner, kind); found != "" {
		return fmt.Errorf("secret %s was not created by Drover: %s: its content is not applied or shown. "+
			"Another user may have created it: find out who with "+
			"\"kubectl -n %s get secret %s -o yaml --show-managed-fields\", delete it, and run the same command again",
			client.ObjectKeyFromObject(secret), found, secret.Namespace, secret.Name)
	}
	return nil
}

// pathClusters is the path at which a hub serves the Kubernetes APIs of members.
const pathClusters = "/k8s/clusters/"

// MemberPath returns the path at which a hub serves a member's Kubernetes API.
func MemberPath(workspace, cluster string) string {
	return pathClusters + workspace + "/" + cluster
}

// HubBase returns the part of a server's URL before the path of a Kubernetes API on the hub. atHub reports whether the
// URL contains such a path.
func HubBase(server string) (base string, atHub bool) {
	u, err := url.Parse(server)
	if err != nil {
		return "", false
	}
	path := strings.TrimRight(u.Path, "/")
	before, found := strings.CutSuffix(path, PathLocal)
	if !found {
		var cluster string
		before, cluster, found = strings.Cut(path, pathClusters)
		workspace, name, _ := strings.Cut(cluster, "/")
		found = found && len(validation.IsDNS1123Label(workspace)) == 0 && len(validation.IsDNS1123Subdomain(name)) == 0
	}
	if !found {
		return "", false // other programs, such as Rancher, also serve clusters at /k8s/clusters/
	}
	u.Path, u.RawPath = before, ""
	return u.String(), true
}
