// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
)

// removal describes an object to delete, or an object from which only Drover's fields are removed.
type removal struct {
	resource        schema.GroupVersionResource
	kind            string
	namespace, name string
	uid             types.UID
	leaving         bool   // the object is being deleted
	done            string // the word to print for the result
	patch           []byte // the patch to apply, or nil to delete the object
	patchType       types.PatchType
}

// String returns the kind and the name of the object.
func (r removal) String() string {
	if r.namespace == "" {
		return r.kind + " " + r.name
	}
	return r.kind + " " + r.namespace + "/" + r.name
}

func (r removal) patchOptions() metav1.PatchOptions {
	if r.patchType != types.ApplyPatchType {
		return metav1.PatchOptions{}
	}
	return metav1.PatchOptions{FieldManager: protocol.FieldManager}
}

// gather returns Drover's objects in the order in which they are removed: the agent's rights, the objects that sets
// delivered, the nodes, the objects that plans need, and the agent.
func (u *uninstaller) gather(ctx context.Context) ([]removal, error) {
	rights, agent, err := u.agents(ctx)
	if err != nil {
		return nil, err
	}
	all := rights
	for _, k := range protocol.SetKinds() {
		found, err := u.delivered(ctx, k)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	nodes, err := u.nodes(ctx)
	if err != nil {
		return nil, err
	}
	plans, err := u.plans(ctx)
	if err != nil {
		return nil, err
	}
	return slices.Concat(all, nodes, plans, agent), nil
}

// agents returns the objects in the agent's manifest and the objects that the agent maintains, in any namespace. rights
// contains the cluster-wide rights, which are removed first.
func (u *uninstaller) agents(ctx context.Context) (rights, rest []removal, err error) {
	selector := protocol.LabelName + "=" + protocol.AgentName + "," + v1.LabelManagedBy + "=" + v1.ManagedBy
	spaces, err := u.list(ctx, protocol.ObjectKind{Name: "Namespace", APIVersion: "v1", Resource: "namespaces"}, selector)
	if err != nil {
		return nil, nil, err
	}
	// any other namespace was created by an administrator
	spaces = slices.DeleteFunc(spaces, func(o *metav1.PartialObjectMetadata) bool { return o.Name != protocol.AgentNamespace })
	// deleting the namespace also deletes its contents
	whole := len(spaces) > 0
	for i, k := range protocol.ManifestKinds() {
		found, err := u.list(ctx, k, selector)
		if err != nil {
			return nil, nil, err
		}
		for _, o := range found {
			switch r := deletion(k, o); {
			case i == 0:
				rights = append(rights, r)
			case !whole || o.Namespace != protocol.AgentNamespace:
				rest = append(rest, r)
			}
		}
	}
	for _, o := range spaces {
		rest = append(rest, deletion(protocol.ObjectKind{Name: "Namespace", APIVersion: "v1", Resource: "namespaces"}, o))
	}
	return rights, rest, nil
}

// delivered returns the objects of a kind that were delivered in sets. Namespaces belong to users, so they are not
// deleted. Only the fields that Drover applied are removed from them.
func (u *uninstaller) delivered(ctx context.Context, k protocol.ObjectKind) ([]removal, error) {
	selector := v1.LabelSet
	if k.Name == "Namespace" {
		selector = ""
	}
	found, err := u.list(ctx, k, selector)
	if err != nil {
		return nil, err
	}
	var all []removal
	for _, o := range found {
		switch {
		case !applied(o, protocol.FieldManager):
		case k.Name != "Namespace":
			all = append(all, deletion(k, o))
		case o.Name != v1.PlansNamespace && o.Name != protocol.AgentNamespace:
			r := deletion(k, o)
			r.done, r.patchType = "released", types.ApplyPatchType
			r.patch, err = json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": o.Name, "uid": o.UID}})
			if err != nil {
				return nil, fmt.Errorf("encode patch of %s: %w", r, err)
			}
			all = append(all, r)
		}
	}
	return all, nil
}

// applied reports whether the given field manager applied an object. The labels do not prove this, because a user's
// copy of the object has the same labels.
func applied(o *metav1.PartialObjectMetadata, manager string) bool {
	return slices.ContainsFunc(o.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == manager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == ""
	})
}

// nodes finds the nodes on which plans have run. Uninstalling removes the plans' labels and annotations from these
// nodes, and uncordons the nodes that a plan cordoned.
func (u *uninstaller) nodes(ctx context.Context) ([]removal, error) {
	k := protocol.ObjectKind{Name: "Node", APIVersion: "v1", Resource: "nodes"}
	found, err := u.list(ctx, k, "")
	if err != nil {
		return nil, err
	}
	var all []removal
	for _, o := range found {
		change, needed := release(o)
		if !needed {
			continue
		}
		r := deletion(k, o)
		r.done, r.patchType = "released", types.MergePatchType
		if r.patch, err = json.Marshal(change); err != nil {
			return nil, fmt.Errorf("encode patch of %s: %w", r, err)
		}
		all = append(all, r)
	}
	return all, nil
}

// release returns the patch that removes the plans' labels and annotations from a node, and reports whether the node
// has any.
func release(node *metav1.PartialObjectMetadata) (patch map[string]any, needed bool) {
	annotations, labels := map[string]any{}, map[string]any{}
	patch = map[string]any{"metadata": map[string]any{"annotations": annotations, "labels": labels, "resourceVersion": node.ResourceVersion}}
	for key, value := range node.Annotations {
		if !strings.HasPrefix(key, v1.LabelPlanPrefix+"/") {
			continue
		}
		annotations[key] = nil
		var claim rollout.Claim
		if json.Unmarshal([]byte(value), &claim) == nil && claim.Cordoned {
			patch["spec"] = map[string]any{"unschedulable": nil}
		}
	}
	for key, value := range node.Labels {
		if strings.HasPrefix(key, v1.LabelPlanPrefix+"/") && value != v1.PlanDisabled { // a user set this value
			labels[key] = nil
		}
	}
	return patch, len(annotations)+len(labels) > 0
}

// plans returns the objects that the agent installed for plans. If users have created their own Plans, it returns no
// objects, because deleting the CustomResourceDefinition would also delete those Plans.
func (u *uninstaller) plans(ctx context.Context) ([]removal, error) {
	hub, err := u.isHub(ctx)
	if err != nil {
		return nil, err
	}
	own, err := u.list(ctx, protocol.ObjectKind{Name: "Plan", APIVersion: v1.GroupVersion.String(), Resource: "plans"}, "!"+v1.LabelSet)
	if err != nil {
		return nil, err
	}
	if len(own) > 0 {
		u.say(fmt.Sprintf("the objects that plans need stay, because Drover did not deliver Plan %s/%s", own[0].Namespace, own[0].Name))
		return nil, nil
	}
	const rbac = "rbac.authorization.k8s.io/v1"
	var all []removal
	for _, k := range []protocol.ObjectKind{
		{Name: "ClusterRoleBinding", APIVersion: rbac, Resource: "clusterrolebindings"},
		{Name: "ClusterRole", APIVersion: rbac, Resource: "clusterroles"},
		{Name: "Namespace", APIVersion: "v1", Resource: "namespaces"},
		definitions(),
	} {
		found, err := u.list(ctx, k, v1.LabelManagedBy+"="+v1.ManagedBy)
		if err != nil {
			return nil, err
		}
		for _, o := range found {
			if slices.Contains([]string{protocol.PlanAccount, protocol.PlanSchema, v1.PlansNamespace}, o.Name) && applied(o, protocol.PlanManager) && (!hub || k.Name != crdKind) {
				all = append(all, deletion(k, o))
			}
		}
	}
	return all, nil
}

const crdKind = "CustomResourceDefinition"

func definitions() protocol.ObjectKind {
	return protocol.ObjectKind{Name: crdKind, APIVersion: "apiextensions.k8s.io/v1", Resource: "customresourcedefinitions"}
}

// isHub reports whether the cluster is also a hub, and prints a message if it is. The hub's own objects, and the kinds
// that it needs, are not removed.
func (u *uninstaller) isHub(ctx context.Context) (bool, error) {
	const clusters = "clusters." + v1.Group
	_, err := u.objects.Resource(resourceOf(definitions())).Get(ctx, clusters, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read %s %s: %w", crdKind, clusters, err)
	}
	u.say("the cluster at " + u.server + " is a hub: only the objects of an agent are removed; to remove the hub, run " +
		"\"make undeploy\" in Drover's sources")
	return true, nil
}

// list returns the metadata of all objects of a kind. If the API server does not serve the kind, list returns no
// objects.
func (u *uninstaller) list(ctx context.Context, k protocol.ObjectKind, selector string) ([]*metav1.PartialObjectMetadata, error) {
	const page = 500
	var all []*metav1.PartialObjectMetadata
	options := metav1.ListOptions{LabelSelector: selector, Limit: page}
	for {
		list, err := u.objects.Resource(resourceOf(k)).List(ctx, options)
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", k.Resource, err)
		}
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return all, nil
		}
	}
}

func resourceOf(k protocol.ObjectKind) schema.GroupVersionResource {
	return schema.FromAPIVersionAndKind(k.APIVersion, k.Name).GroupVersion().WithResource(k.Resource)
}

func deletion(k protocol.ObjectKind, o *metav1.PartialObjectMetadata) removal {
	return removal{
		resource: resourceOf(k), kind: k.Name, namespace: o.Namespace, name: o.Name, uid: o.UID,
		leaving: o.DeletionTimestamp != nil, done: "deleted",
	}
}
