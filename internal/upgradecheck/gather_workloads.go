// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/resource"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	labelName = "app.kubernetes.io/name"
	// maxServices is the maximum number of Services of webhooks.
	maxServices = 500
	// unfinished is the field selector for pods that occupy resources.
	unfinished = "status.phase!=Succeeded,status.phase!=Failed"
)

// budgetSelector is the selector of the budget with an index.
type budgetSelector struct {
	labels.Selector
	index int
}

// budgets reads the PodDisruptionBudgets.
func (g *gatherer) budgets(ctx context.Context) error {
	g.selectors = map[string][]budgetSelector{}
	const path = "/apis/policy/v1/poddisruptionbudgets"
	kept := 0
	return list(ctx, g, path, jsonType, nil, func(b *policyv1.PodDisruptionBudget) error {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil {
			return fmt.Errorf("read the selector of %s/%s: %w", b.Namespace, b.Name, err)
		}
		if kept += len(b.Namespace) + len(b.Name) + len(selector.String()); kept > maxKept {
			return fmt.Errorf("the selectors of the budgets have more than %d bytes", maxKept)
		}
		g.selectors[b.Namespace] = append(g.selectors[b.Namespace], budgetSelector{selector, len(g.facts.Budgets)})
		policy := b.Spec.UnhealthyPodEvictionPolicy
		g.facts.Budgets = append(g.facts.Budgets, Budget{
			Name: b.Namespace + "/" + b.Name, Allowed: int64(b.Status.DisruptionsAllowed),
			Healthy: int64(b.Status.CurrentHealthy), Desired: int64(b.Status.DesiredHealthy),
			AlwaysAllow: policy != nil && *policy == policyv1.AlwaysAllow,
		})
		return nil
	})
}

// pods adds the pods to their nodes and budgets.
func (g *gatherer) pods(ctx context.Context) error {
	selector := labels.Everything()
	if g.target.Drain.PodSelector != nil {
		var err error
		if selector, err = metav1.LabelSelectorAsSelector(g.target.Drain.PodSelector); err != nil {
			return fmt.Errorf("read podSelector: %w", err)
		}
	}
	query := map[string]string{"fieldSelector": unfinished}
	return list(ctx, g, "/api/v1/pods", jsonType, query, func(p *corev1.Pod) error {
		index, found := g.nodeIndex[p.Spec.NodeName]
		if !found {
			return nil
		}
		node := &g.facts.Nodes[index]
		requested := amountsOf(resource.PodRequests(p, resource.PodResourcesOptions{}))
		requested.Pods = 1
		node.Requested.add(requested, 1)
		if node.Selected && leaves(p) && selector.Matches(labels.Set(p.Labels)) {
			node.Leaving.add(requested, 1)
			node.LargestPod.raise(requested)
			g.spend(p)
		}
		return nil
	})
}

// leaves reports whether a drain evicts a pod, or would fail because of it.
func leaves(p *corev1.Pod) bool {
	_, mirror := p.Annotations[corev1.MirrorPodAnnotationKey]
	owner := metav1.GetControllerOf(p)
	return !mirror && p.DeletionTimestamp == nil && p.Namespace != v1.PlansNamespace &&
		p.Labels[labelName] != protocol.AgentName && (owner == nil || owner.Kind != "DaemonSet")
}

// spend adds a pod to evict to its budgets. The eviction API ignores the budgets of pending pods.
func (g *gatherer) spend(p *corev1.Pod) {
	if p.Status.Phase == corev1.PodPending {
		return
	}
	ready := slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	matched := 0
	for _, s := range g.selectors[p.Namespace] {
		if !s.Matches(labels.Set(p.Labels)) {
			continue
		}
		matched++
		if b := &g.facts.Budgets[s.index]; ready {
			b.Ready++
		} else {
			b.Unready++
		}
	}
	if matched > 1 && g.facts.Shared == "" {
		g.facts.Shared = p.Namespace + "/" + p.Name
	}
}

// webhookConfiguration is the part of a ValidatingWebhookConfiguration or a MutatingWebhookConfiguration that matters
// here.
type webhookConfiguration struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Webhooks []struct {
		Name          string        `json:"name"`
		FailurePolicy string        `json:"failurePolicy"`
		Rules         []webhookRule `json:"rules"`
		ClientConfig  struct {
			Service *struct {
				Namespace string `json:"namespace"`
				Name      string `json:"name"`
			} `json:"service"`
		} `json:"clientConfig"`
	} `json:"webhooks"`
}

// webhookRule is the part of a webhook's rule that matters here.
type webhookRule struct {
	APIGroups []string `json:"apiGroups"`
	Resources []string `json:"resources"`
}

// needed lists the resources that nodes, drains and Plans write during an upgrade.
func needed() []schema.GroupResource {
	return []schema.GroupResource{
		{Resource: "pods"}, {Resource: "pods/eviction"}, {Resource: "pods/binding"}, {Resource: "pods/status"},
		{Resource: "nodes"}, {Resource: "nodes/status"}, {Resource: "events"}, {Resource: "serviceaccounts/token"},
		{Group: "events.k8s.io", Resource: "events"}, {Group: "coordination.k8s.io", Resource: "leases"},
		{Group: "batch", Resource: "jobs"}, {Group: "batch", Resource: "jobs/status"},
	}
}

// matches reports whether a rule matches any resource that an upgrade needs. In rules, "*" matches only resources,
// "pods/*" matches pods and their subresources, and "*/*" matches everything.
func (r *webhookRule) matches() bool {
	return slices.ContainsFunc(needed(), func(n schema.GroupResource) bool {
		if !slices.Contains(r.APIGroups, n.Group) && !slices.Contains(r.APIGroups, "*") {
			return false
		}
		resource, subresource, _ := strings.Cut(n.Resource, "/")
		return slices.ContainsFunc(r.Resources, func(rule string) bool {
			name, sub, _ := strings.Cut(rule, "/")
			return (name == "*" || name == resource) && (sub == "*" || sub == subresource)
		})
	})
}

// webhooks reads the webhooks that reject requests when their Service cannot be reached.
func (g *gatherer) webhooks(ctx context.Context) error {
	services := map[string]*Webhook{}
	kept := 0
	for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		path := "/apis/admissionregistration.k8s.io/v1/" + kind + "s"
		err := list(ctx, g, path, jsonType, nil, func(c *webhookConfiguration) error {
			for _, w := range c.Webhooks {
				if w.FailurePolicy == "Ignore" || w.ClientConfig.Service == nil ||
					!slices.ContainsFunc(w.Rules, func(r webhookRule) bool { return r.matches() }) {
					continue
				}
				namespace, name := w.ClientConfig.Service.Namespace, w.ClientConfig.Service.Name
				is := Webhook{Configuration: kind + "/" + c.Metadata.Name, Name: w.Name, Service: namespace + "/" + name}
				if kept += len(is.Configuration) + len(is.Name) + len(is.Service); kept > maxKept {
					return fmt.Errorf("the names of the webhooks have more than %d bytes", maxKept)
				}
				known := services[is.Service]
				if known == nil {
					if len(services) == maxServices {
						return fmt.Errorf("there are more than %d Services of webhooks", maxServices)
					}
					known = &Webhook{}
					services[is.Service] = known
					if err := g.endpoints(ctx, namespace, name, known); err != nil {
						return err
					}
				}
				is.Exists, is.Endpoints = known.Exists, known.Endpoints
				g.facts.Webhooks = append(g.facts.Webhooks, is)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// endpointSlice is the part of an EndpointSlice that matters here.
type endpointSlice struct {
	Endpoints []struct {
		Conditions struct {
			Ready *bool `json:"ready"`
		} `json:"conditions"`
	} `json:"endpoints"`
}

// endpoints counts the ready endpoints of a Service. The API server calls a Service of type ExternalName by its name,
// so such a Service counts as an endpoint.
func (g *gatherer) endpoints(ctx context.Context, namespace, name string, into *Webhook) error {
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1035Label(name)) > 0 {
		return nil // such a Service cannot exist
	}
	type service struct {
		Spec struct {
			Type string `json:"type"`
		} `json:"spec"`
	}
	is, err := read[service](ctx,
		g.Client.Get().AbsPath("/api/v1/namespaces", namespace, "services", name).SetHeader("Accept", jsonType))
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	into.Exists = true
	if is.Spec.Type == string(corev1.ServiceTypeExternalName) {
		into.Endpoints = 1
		return nil
	}
	path := "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices"
	query := map[string]string{"labelSelector": "kubernetes.io/service-name=" + name}
	return list(ctx, g, path, jsonType, query, func(s *endpointSlice) error {
		for _, e := range s.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				into.Endpoints++
			}
		}
		return nil
	})
}
