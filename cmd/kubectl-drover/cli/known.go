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

// Mark is the plugin's own data about a context. It is stored in a kubeconfig extension, and contains no secrets.
type Mark struct {
	// Server is the context's server when the mark was set. The fields from Selected to Workspace are valid only for
	// that server.
	Server string `json:"server,omitempty"`
	// Selected is the time when "login" or "use" last selected this context as the hub. It is zero for a member's
	// context.
	Selected time.Time `json:"selected,omitzero"`
	// URL and CA are the address and the CA of the hub's proxy. Only URL is set in the mark of a member's context.
	URL string `json:"url,omitempty"`
	CA  []byte `json:"ca,omitempty"`
	// Workspace is the workspace of the member's Cluster. It is set only for a member's context.
	Workspace string `json:"workspace,omitempty"`
	// Hub is the hub's context. It is set only for a member's context.
	Hub string `json:"hub,omitempty"`
	// Previous is the context that "use -" returns to.
	Previous string `json:"previous,omitempty"`
}

// MarkOf returns the mark of a context, or an empty mark if the context has none. If the context's server has changed
// since the mark was set, MarkOf omits the fields that are valid only for the old server.
func MarkOf(raw *clientcmdapi.Config, name string) Mark {
	var m Mark
	c := raw.Contexts[name]
	if c == nil {
		return m
	}
	if held, ok := c.Extensions[markName].(*runtime.Unknown); ok && json.Unmarshal(held.Raw, &m) != nil {
		return Mark{} // the extension was written by another program or is damaged
	}
	if m.Server == "" || m.Server != ServerOf(raw, name) {
		return Mark{Hub: m.Hub, Previous: m.Previous}
	}
	return m
}

// SetMark replaces the mark of a context. The new mark is valid for the context's current server.
func SetMark(config *clientcmdapi.Config, name string, m Mark) error {
	m.Server = ServerOf(config, name)
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	c := config.Contexts[name]
	if c.Extensions == nil {
		c.Extensions = map[string]runtime.Object{}
	}
	c.Extensions[markName] = &runtime.Unknown{Raw: raw, ContentType: runtime.ContentTypeJSON}
	return nil
}

// ServerOf returns the server of a context, or "" if the context has none.
func ServerOf(raw *clientcmdapi.Config, name string) string {
	if c := raw.Contexts[name]; c != nil && raw.Clusters[c.Cluster] != nil {
		return strings.TrimRight(raw.Clusters[c.Cluster].Server, "/")
	}
	return ""
}

// BaseOf finds the hub that a context belongs to, and returns the address of the hub's proxy. It returns "" if the
// context belongs to no known hub.
func BaseOf(raw *clientcmdapi.Config, name string) string {
	if base, atHub := HubBase(ServerOf(raw, name)); atHub {
		return base
	}
	return MarkOf(raw, name).URL
}

// Proxy returns the address of the hub's proxy and the proxy's PEM-encoded CA. A value is empty if the kubeconfig does
// not contain it.
func (o *Options) Proxy() (base string, ca []byte) {
	raw, err := o.RawConfig()
	if err != nil {
		return "", nil
	}
	name, err := o.HubContext(&raw)
	if err != nil || raw.Contexts[name] == nil {
		return "", nil
	}
	mark := MarkOf(&raw, name)
	if base, atHub := HubBase(ServerOf(&raw, name)); atHub {
		return base, raw.Clusters[raw.Contexts[name].Cluster].CertificateAuthorityData
	}
	return mark.URL, mark.CA
}

// HubContext returns the context of the hub. See FindHub.
func (o *Options) HubContext(raw *clientcmdapi.Config) (string, error) {
	name, _, err := o.FindHub(raw)
	return name, err
}

// FindHub returns the hub's context. It uses the first of the following that exists: the value of --context or --hub,
// the hub that the current context belongs to, the hub that "login" or "use" selected most recently, and the current
// context.
//
// guessed is true if FindHub returns the most recently selected hub, but the current context may belong to a different
// hub. A command that makes changes must not use a guessed hub.
func (o *Options) FindHub(raw *clientcmdapi.Config) (name string, guessed bool, err error) {
	current := cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)
	if o.Overrides.CurrentContext != "" || o.Overrides.ClusterInfo.Server != "" {
		return current, false, nil
	}
	if o.HubName != "" {
		name, err = NamedHub(raw, o.HubName)
		return name, false, err
	}
	if name, err = hubOfMember(raw, current); name != "" || err != nil {
		return name, false, err
	}
	if hubs := hubContexts(raw); len(hubs) > 0 {
		return hubs[0], true, nil
	}
	return current, false, nil
}

// hubOfMember returns the context of the hub that the named context belongs to, or "" if that hub is not known. It
// returns an error if the named context is known to belong to a hub, but the kubeconfig has no context for that hub.
// The command must not use a different hub in that case.
func hubOfMember(raw *clientcmdapi.Config, name string) (string, error) {
	if LeadsToHub(raw, name) {
		return name, nil
	}
	base, mark := BaseOf(raw, name), MarkOf(raw, name)
	if base == "" && mark.Hub == "" {
		return "", nil
	}
	if base == "" { // the context does not show which hub it belongs to
		return "", fmt.Errorf("the current context %s was made for a member of the hub of context %s, but it is not "+
			"known any more to which hub it belongs: select the hub with --hub or --context", Visible(name), Visible(mark.Hub))
	}
	if LeadsToHub(raw, mark.Hub) && BaseOf(raw, mark.Hub) == base {
		return mark.Hub, nil
	}
	if hub := hubAt(raw, base); hub != "" {
		return hub, nil
	}
	return "", fmt.Errorf("the current context %s leads to a member of the hub %s, and no context of that hub is known: "+
		"select it with --context, or remember it with \"kubectl drover use --hub=%s --ca FILE --context CONTEXT\"",
		Visible(name), Visible(base), Quoted(base))
}

// LeadsToHub reports whether a context is known to point to a hub's API server. It is known if the context was selected
// as the hub, or if the server's URL shows it.
func LeadsToHub(raw *clientcmdapi.Config, name string) bool {
	return !MarkOf(raw, name).Selected.IsZero() || strings.HasSuffix(ServerOf(raw, name), PathLocal)
}

// hubAt returns a context that points to the API server of the hub whose proxy has the address base, or "" if there is
// none. If several contexts match, hubAt prefers the current context, and then the most recently selected context.
func hubAt(raw *clientcmdapi.Config, base string) string {
	names := append([]string{raw.CurrentContext}, hubContexts(raw)...)
	for _, name := range append(names, slices.Sorted(maps.Keys(raw.Contexts))...) {
		if LeadsToHub(raw, name) && BaseOf(raw, name) == base {
			return name
		}
	}
	return ""
}

// PathLocal is the path at which a hub serves its own Kubernetes API.
const PathLocal = "/k8s/local"

// hubContexts returns the contexts that are known to point to a hub, most recently selected first.
func hubContexts(raw *clientcmdapi.Config) []string {
	hubs := slices.Sorted(maps.Keys(raw.Contexts))
	hubs = slices.DeleteFunc(hubs, func(name string) bool { return MarkOf(raw, name).Selected.IsZero() })
	slices.SortStableFunc(hubs, func(a, b string) int {
		return MarkOf(raw, b).Selected.Compare(MarkOf(raw, a).Selected)
	})
	return hubs
}

// NamedHub returns the context for a value of --hub. The value is a context, the URL of a hub, or the URL of a hub's
// API server.
func NamedHub(raw *clientcmdapi.Config, name string) (string, error) {
	if raw.Contexts[name] != nil {
		return name, nil
	}
	at := strings.TrimRight(name, "/")
	if hub := hubAt(raw, at); hub != "" && at != "" {
		return hub, nil
	}
	for _, context := range append([]string{raw.CurrentContext}, slices.Sorted(maps.Keys(raw.Contexts))...) {
		if ServerOf(raw, context) == at && at != "" {
			return context, nil
		}
	}
	return "", fmt.Errorf("no context of the kubeconfig leads to the API server of the hub %s: select one with --context",
		Visible(name))
}

// ErrNoHub is returned when a command needs a hub but cannot determine one.
var ErrNoHub = errors.New("no hub is known")

// ErrGuessed returns the error for a command that would make changes on a guessed hub.
func ErrGuessed(hub string) error {
	return fmt.Errorf("the current context does not say which hub is meant, and this command may change something: "+
		"select the hub with --hub or --context, for example --hub=%s, or make it current with \"kubectl drover use --hub\"",
		Quoted(hub))
}

// workspaceOf returns the workspace of the Cluster that a context points to, or "" if the workspace is not known.
func workspaceOf(raw *clientcmdapi.Config, name string) string {
	if marked := MarkOf(raw, name).Workspace; marked != "" {
		return marked
	}
	u, err := url.Parse(ServerOf(raw, name))
	if err != nil {
		return ""
	}
	_, cluster, _ := strings.Cut(u.Path, pathClusters)
	workspace, _, _ := strings.Cut(cluster, "/")
	return workspace
}
