// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// markName is the name of the kubeconfig extension that holds a Mark.
const markName = "drover.dev"

// Mark is the plugin's own data about a context, which is stored in a kubeconfig extension. It contains no secrets.
type Mark struct {
	// Selected is when "login" or "use" last selected this context as the hub. It is zero for a context of a member.
	Selected time.Time `json:"selected,omitzero"`
	// URL and CA are the address of the hub's proxy, for a context of a hub.
	URL string `json:"url,omitempty"`
	CA  []byte `json:"ca,omitempty"`
	// Hub is the context of the hub, for a context of a member.
	Hub string `json:"hub,omitempty"`
	// Previous is the context that "use -" returns to.
	Previous string `json:"previous,omitempty"`
}

// MarkOf returns the mark of a context, or an empty one.
func MarkOf(c *clientcmdapi.Context) Mark {
	var m Mark
	if c == nil {
		return m
	}
	if held, ok := c.Extensions[markName].(*runtime.Unknown); ok && json.Unmarshal(held.Raw, &m) != nil {
		return Mark{} // written by another program, or damaged
	}
	return m
}

// SetMark replaces the mark of a context.
func SetMark(c *clientcmdapi.Context, m Mark) error {
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if c.Extensions == nil {
		c.Extensions = map[string]runtime.Object{}
	}
	c.Extensions[markName] = &runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON}
	return nil
}

// ServerOf returns the server of a context, or "".
func ServerOf(raw *clientcmdapi.Config, name string) string {
	if c := raw.Contexts[name]; c != nil && raw.Clusters[c.Cluster] != nil {
		return strings.TrimRight(raw.Clusters[c.Cluster].Server, "/")
	}
	return ""
}

// BaseOf returns the address of the hub's proxy that a context belongs to, or "".
func BaseOf(raw *clientcmdapi.Config, name string) string {
	if base, atHub := HubBase(ServerOf(raw, name)); atHub {
		return base
	}
	return MarkOf(raw.Contexts[name]).URL
}

// Proxy returns the address of the hub's proxy and its CA in PEM, or "" if they are not in the kubeconfig.
func (o *Options) Proxy() (base string, ca []byte) {
	raw, err := o.Kubeconfig().RawConfig()
	if err != nil {
		return "", nil
	}
	name, err := o.HubContext(&raw)
	if err != nil || raw.Contexts[name] == nil {
		return "", nil
	}
	mark := MarkOf(raw.Contexts[name])
	if base, atHub := HubBase(ServerOf(&raw, name)); atHub {
		return base, raw.Clusters[raw.Contexts[name].Cluster].CertificateAuthorityData
	}
	return mark.URL, mark.CA
}

// HubContext returns the context of the hub: the value of --context or --hub, otherwise the hub that belongs to the
// current context, otherwise the hub that "login" or "use" selected last, and otherwise the current context.
func (o *Options) HubContext(raw *clientcmdapi.Config) (string, error) {
	current := cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)
	if o.Overrides.CurrentContext != "" || o.Overrides.ClusterInfo.Server != "" {
		return current, nil
	}
	hubs := hubContexts(raw)
	if o.HubName != "" {
		return namedHub(raw, hubs, o.HubName)
	}
	mark := MarkOf(raw.Contexts[current])
	switch {
	case raw.Contexts[mark.Hub] != nil:
		return mark.Hub, nil
	case !mark.Selected.IsZero():
		return current, nil
	}
	if base, atHub := HubBase(ServerOf(raw, current)); atHub {
		if strings.HasSuffix(ServerOf(raw, current), PathLocal) {
			return current, nil
		}
		for _, name := range hubs {
			if BaseOf(raw, name) == base {
				return name, nil
			}
		}
		if len(hubs) == 0 {
			return "", fmt.Errorf("the current context %s leads to a member, and no context of the hub is known: select the "+
				"hub with --context, and remember it with \"kubectl drover use --hub --context CONTEXT\"", current)
		}
	}
	if len(hubs) > 0 {
		return hubs[0], nil
	}
	return current, nil
}

// PathLocal is the path at which a hub serves its own Kubernetes API.
const PathLocal = "/k8s/local"

// hubContexts returns the contexts that are known to point to a hub, most recently selected first.
func hubContexts(raw *clientcmdapi.Config) []string {
	hubs := slices.Sorted(maps.Keys(raw.Contexts))
	hubs = slices.DeleteFunc(hubs, func(name string) bool { return MarkOf(raw.Contexts[name]).Selected.IsZero() })
	slices.SortStableFunc(hubs, func(a, b string) int {
		return MarkOf(raw.Contexts[b]).Selected.Compare(MarkOf(raw.Contexts[a]).Selected)
	})
	return hubs
}

// namedHub returns the context that --hub names: a context, or the URL of a hub or of its API server.
func namedHub(raw *clientcmdapi.Config, hubs []string, name string) (string, error) {
	if raw.Contexts[name] != nil {
		return name, nil
	}
	at := strings.TrimRight(name, "/")
	for _, hub := range hubs {
		if BaseOf(raw, hub) == at || ServerOf(raw, hub) == at {
			return hub, nil
		}
	}
	for _, context := range slices.Sorted(maps.Keys(raw.Contexts)) {
		if server := ServerOf(raw, context); server == at+PathLocal || server == at {
			return context, nil
		}
	}
	return "", fmt.Errorf("no context of the kubeconfig leads to the API server of the hub %s: select one with --context",
		Visible(name))
}

// ErrNoHub is returned when a command needs a hub and none is known.
var ErrNoHub = errors.New("no hub is known")

// workspaceOf returns the workspace of the Cluster that a context reaches through the hub, or "".
func workspaceOf(raw *clientcmdapi.Config, name string) string {
	u, err := url.Parse(ServerOf(raw, name))
	if err != nil {
		return ""
	}
	_, cluster, _ := strings.Cut(u.Path, "/k8s/clusters/")
	workspace, _, _ := strings.Cut(cluster, "/")
	return workspace
}
