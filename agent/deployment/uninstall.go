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

// Objects of the agent outside of namespaces.
const (
	clusterRole        = "/apis/rbac.authorization.k8s.io/v1/clusterroles/" + protocol.AgentName
	clusterRoleBinding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/" + protocol.AgentName
	viewBinding        = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/" + protocol.AgentViewBinding
)

// ErrNotLeading is what UninstallOptions.Sets returns where another replica of the agent must be asked.
var ErrNotLeading = errors.New("another replica of the agent leads")

// UninstallOptions are those of an Uninstaller.
type UninstallOptions struct {
	Client rest.Interface
	// Namespace that the agent lives in.
	Namespace string
	// Sets removes what was delivered, and returns what it could not. Nil for nothing.
	Sets func(context.Context) ([]string, error)
	Log  logr.Logger
}

// Uninstaller is the http.Handler of protocol.PathUninstall: it removes everything that Drover put into the member.
//
// The agent cannot wait for its own end: with its namespace its rights go, too. So it makes the objects outside of the
// namespace belong to it and deletes the namespace. Then Kubernetes' garbage collector removes the rest.
type Uninstaller struct {
	client    rest.Interface
	namespace string
	sets      func(context.Context) ([]string, error)
	log       logr.Logger
	done      chan struct{}
	once      sync.Once
}

// NewUninstaller makes an Uninstaller.
func NewUninstaller(o UninstallOptions) *Uninstaller {
	if o.Sets == nil {
		o.Sets = func(context.Context) ([]string, error) { return nil, nil }
	}
	return &Uninstaller{client: o.Client, namespace: o.Namespace, sets: o.Sets, log: o.Log, done: make(chan struct{})}
}

// Done is closed when everything is removed or being removed and the hub has the result: the agent has nothing left to
// do.
func (h *Uninstaller) Done() <-chan struct{} { return h.done }

// ServeHTTP answers POST with what could not be removed, and 421 where another replica must be asked. If that is
// nothing the agent ends; else the hub may ask again.
func (h *Uninstaller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "uninstalling is asked for with POST", http.StatusMethodNotAllowed)
		return
	}
	h.log.Info("uninstalling")
	var result protocol.UninstallResult
	remaining, err := h.sets(r.Context())
	switch {
	case errors.Is(err, ErrNotLeading):
		http.Error(w, err.Error(), http.StatusMisdirectedRequest)
		return
	case err != nil:
		result.Remaining = []string{err.Error()}
	case len(remaining) > 0: // only the agent can remove it
		result.Remaining = remaining
	default:
		result.Stale = h.stale(r.Context())
		result.Remaining = h.remove(r.Context())
	}
	result.Bound()
	body, err := json.Marshal(result)
	if err != nil { // it holds strings only
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body) // the agent ends whether or not the hub still listens
	h.log.Info("uninstalled", "remaining", result.Remaining)
	if len(result.Remaining) == 0 {
		h.once.Do(func() { close(h.done) })
	}
}

// discoveryV2 asks for all groups of the API in one response, which says of each whether it is stale.
const discoveryV2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// stale returns the groups of the API whose server does not answer. Kubernetes does not end the deletion of a namespace
// while it cannot ask what is in there. Older API servers do not say it.
func (h *Uninstaller) stale(ctx context.Context) (groups []string) {
	raw, err := h.client.Get().AbsPath("/apis").SetHeader("Accept", discoveryV2).DoRaw(ctx)
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

// remove removes what it can and returns the rest. A missing object is no error. Each step leaves the rights that the
// next one needs.
func (h *Uninstaller) remove(ctx context.Context) []string {
	anchor, err := h.anchor(ctx)
	if err != nil {
		return []string{fmt.Sprintf("Namespace %s: %v", h.namespace, err)}
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
	// older manifests have neither it nor rights to it
	if err := h.release(ctx, viewBinding, anchor); !apierrors.IsForbidden(err) {
		failed("ClusterRoleBinding "+protocol.AgentViewBinding, err)
	}
	for _, name := range []string{protocol.NodeAgentName, protocol.DirectName} {
		// as above
		if err := h.delete(ctx, "/apis/apps/v1/namespaces/"+h.namespace+"/daemonsets/"+name); !apierrors.IsForbidden(err) {
			failed("DaemonSet "+h.namespace+"/"+name, err)
		}
	}
	if len(remaining) > 0 {
		return remaining // the next step would leave them behind permanently
	}
	for _, name := range []string{protocol.RegistrationSecret, protocol.IdentitySecret, protocol.DeploymentSecret} {
		err := h.client.Delete().Namespace(h.namespace).Resource("secrets").Name(name).Do(ctx).Error()
		failed("Secret "+h.namespace+"/"+name, err)
	}
	if anchor.Kind == "Namespace" {
		err = h.client.Delete().Resource("namespaces").Name(anchor.Name).Do(ctx).Error()
	} else {
		err = h.delete(ctx, clusterRoleBinding)
	}
	failed(anchor.Kind+" "+anchor.Name, err)
	return remaining
}

// anchor is the object that the others shall go with: the agent's namespace, or, if that is gone or is one that an
// operator chose and perhaps uses for other things, the binding.
func (h *Uninstaller) anchor(ctx context.Context) (metav1.OwnerReference, error) {
	if h.namespace == protocol.AgentNamespace {
		ns := &corev1.Namespace{}
		err := h.client.Get().Resource("namespaces").Name(h.namespace).Do(ctx).Into(ns)
		if err == nil {
			return metav1.OwnerReference{APIVersion: "v1", Kind: "Namespace", Name: ns.Name, UID: ns.UID}, nil
		}
		if !apierrors.IsNotFound(err) {
			return metav1.OwnerReference{}, err
		}
	}
	anchor := metav1.OwnerReference{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRoleBinding",
		Name: protocol.AgentName}
	raw, err := h.client.Get().AbsPath(clusterRoleBinding).SetHeader("Accept", "application/json").DoRaw(ctx)
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

// release makes an object go with the anchor, or now if there is none. An owner reference is all that changes, so that
// the API server does not ask whether the agent may grant what the role grants.
func (h *Uninstaller) release(ctx context.Context, path string, anchor metav1.OwnerReference) error {
	if anchor.UID == "" {
		return h.delete(ctx, path)
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"ownerReferences": []metav1.OwnerReference{anchor}}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	return h.client.Patch(types.MergePatchType).AbsPath(path).SetHeader("Accept",
		"application/json").Body(patch).Do(ctx).Error()
}

func (h *Uninstaller) delete(ctx context.Context, path string) error {
	return h.client.Delete().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx).Error()
}
