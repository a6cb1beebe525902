// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/protocol"
)

// Cluster-scoped objects that belong to the agent.
const (
	clusterRole        = "/apis/rbac.authorization.k8s.io/v1/clusterroles/" + protocol.AgentName
	clusterRoleBinding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/" + protocol.AgentName
	viewBinding        = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/" + protocol.AgentViewBinding
)

// ErrNotLeading is the error of UninstallOptions.Sets if another replica is the leader. The hub must send its request
// to that replica.
var ErrNotLeading = errors.New("another replica of the agent leads")

// UninstallOptions configure an Uninstaller.
type UninstallOptions struct {
	Client rest.Interface
	// Namespace is the namespace of the agent.
	Namespace string
	// Sets removes the delivered objects, and returns the objects that it could not remove. It may be nil if the
	// agent delivers no objects.
	Sets func(context.Context) ([]string, error)
	Log  logr.Logger
}

// Uninstaller is the http.Handler for protocol.PathUninstall. It removes everything that Drover has created in the
// member.
//
// The agent cannot wait for its own removal, because it loses its rights together with its namespace. It therefore
// makes the namespace the owner of the cluster-scoped objects, and deletes the namespace. The Kubernetes garbage
// collector then removes the rest.
type Uninstaller struct {
	UninstallOptions
	done chan struct{}
	once sync.Once
}

// NewUninstaller returns an Uninstaller.
func NewUninstaller(o UninstallOptions) *Uninstaller {
	if o.Sets == nil {
		o.Sets = func(context.Context) ([]string, error) { return nil, nil }
	}
	return &Uninstaller{UninstallOptions: o, done: make(chan struct{})}
}

// Done returns a channel that is closed when the agent can exit. At that point, the hub has received the result, and
// the removal is complete or can continue without the agent.
func (h *Uninstaller) Done() <-chan struct{} { return h.done }

// ServeHTTP responds to POST with the list of objects that could not be removed, or with 421 if the hub must send the
// request to another replica. If no objects remain, the agent exits. Otherwise, the hub can repeat the request.
func (h *Uninstaller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "the agent is uninstalled with POST", http.StatusMethodNotAllowed)
		return
	}
	h.Log.Info("uninstalling")
	var result protocol.UninstallResult
	remaining, err := h.Sets(r.Context())
	switch {
	case errors.Is(err, ErrNotLeading):
		http.Error(w, err.Error(), http.StatusMisdirectedRequest)
		return
	case err != nil:
		result.Remaining = []string{err.Error()}
	case len(remaining) > 0: // only the agent can remove these objects
		result.Remaining = remaining
	default:
		result.Stale = h.stale(r.Context())
		result.Remaining = h.remove(r.Context())
	}
	result.Bound()
	body, err := json.Marshal(result)
	if err != nil { // cannot fail, because the result contains only strings
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the agent exits even if the hub does not read the result
	h.Log.Info("uninstalled", "remaining", result.Remaining)
	if len(result.Remaining) == 0 {
		h.once.Do(func() { close(h.done) })
	}
}

// discoveryV2 is the media type that requests all API groups in one response. The response also shows which groups are
// stale.
const discoveryV2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// stale returns the API groups whose server does not respond. Kubernetes cannot finish deleting a namespace as long as
// it cannot list all objects in it. Older API servers do not report stale groups.
func (h *Uninstaller) stale(ctx context.Context) (groups []string) {
	raw, err := h.Client.Get().AbsPath("/apis").SetHeader("Accept", discoveryV2).DoRaw(ctx)
	if err != nil {
		return nil
	}
	var all struct {
		Items []struct {
			Metadata metav1.ObjectMeta `json:"metadata"`
			Versions []struct {
				Version   string `json:"version"`
				Freshness string `json:"freshness"`
			} `json:"versions"`
		} `json:"items"`
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil
	}
	for _, group := range all.Items {
		for _, v := range group.Versions {
			if v.Freshness == "Stale" {
				groups = append(groups, group.Metadata.Name+"/"+v.Version)
			}
		}
	}
	return groups
}

// remove removes as many objects as it can and returns the others. A missing object is not an error. The order of the
// steps ensures that the agent keeps the rights that it needs for the next step.
func (h *Uninstaller) remove(ctx context.Context) []string {
	anchor, err := h.anchor(ctx)
	if err != nil {
		return []string{fmt.Sprintf("Namespace %s: %v", h.Namespace, err)}
	}
	var remaining []string
	failed := func(what string, err error) {
		if err != nil && !apierrors.IsNotFound(err) {
			remaining = append(remaining, fmt.Sprintf("%s: %v", what, err))
		}
	}
	failed("ClusterRole "+protocol.AgentName, h.release(ctx, clusterRole, anchor))
	if anchor.Kind != "ClusterRoleBinding" {
		failed("ClusterRoleBinding "+protocol.AgentName, h.release(ctx, clusterRoleBinding, anchor))
	}
	// Older manifests contain neither this binding nor the right to change it.
	if err := h.release(ctx, viewBinding, anchor); !apierrors.IsForbidden(err) {
		failed("ClusterRoleBinding "+protocol.AgentViewBinding, err)
	}
	for _, name := range []string{protocol.NodeAgentName, protocol.DirectName} {
		// Older manifests do not grant permission to delete these DaemonSets.
		if err := h.delete(ctx, "/apis/apps/v1/namespaces/"+h.Namespace+"/daemonsets/"+name); !apierrors.IsForbidden(err) {
			failed("DaemonSet "+h.Namespace+"/"+name, err)
		}
	}
	if len(remaining) > 0 {
		return remaining // the next step would leave these objects behind permanently
	}
	for _, name := range []string{protocol.RegistrationSecret, protocol.IdentitySecret, protocol.DeploymentSecret} {
		err := h.Client.Delete().Namespace(h.Namespace).Resource("secrets").Name(name).Do(ctx).Error()
		failed("Secret "+h.Namespace+"/"+name, err)
	}
	if anchor.Kind == "Namespace" {
		err = h.Client.Delete().Resource("namespaces").Name(anchor.Name).Do(ctx).Error()
	} else {
		err = h.delete(ctx, clusterRoleBinding)
	}
	failed(anchor.Kind+" "+anchor.Name, err)
	return remaining
}

// anchor returns the object that becomes the owner of the others. If the agent runs in its default namespace, the
// anchor is that namespace. Otherwise the anchor is the agent's ClusterRoleBinding, because an operator who chose
// another namespace may use that namespace for other purposes. The anchor is also the ClusterRoleBinding if the
// namespace is gone.
func (h *Uninstaller) anchor(ctx context.Context) (metav1.OwnerReference, error) {
	if h.Namespace == protocol.AgentNamespace {
		ns := &corev1.Namespace{}
		err := h.Client.Get().Resource("namespaces").Name(h.Namespace).Do(ctx).Into(ns)
		if err == nil {
			return metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: ns.Name, UID: ns.UID}, nil
		}
		if !apierrors.IsNotFound(err) {
			return metav1.OwnerReference{}, err
		}
	}
	anchor := metav1.OwnerReference{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding",
		Name: protocol.AgentName}
	raw, err := h.Client.Get().AbsPath(clusterRoleBinding).SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return anchor, nil
	}
	var binding metav1.PartialObjectMetadata
	if err == nil {
		err = json.Unmarshal(raw, &binding)
	}
	anchor.UID = binding.UID
	return anchor, err
}

// release makes the anchor the owner of an object, or deletes the object if there is no anchor. Because the patch
// changes only the owner reference, the API server does not check whether the agent may grant the rights of the role.
func (h *Uninstaller) release(ctx context.Context, path string, anchor metav1.OwnerReference) error {
	if anchor.UID == "" {
		return h.delete(ctx, path)
	}
	patch, err := json.Marshal(
		map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{anchor}}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	return h.Client.Patch(types.MergePatchType).AbsPath(path).SetHeader("Accept",
		"application/json").Body(patch).Do(ctx).Error()
}

func (h *Uninstaller) delete(ctx context.Context, path string) error {
	return h.Client.Delete().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Error()
}
