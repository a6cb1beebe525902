// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	jsonType = "application/json"
	metaType = jsonType + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

	// pageSize is the number of objects in a page of a list, and maxObjects is the maximum number of objects in a list.
	pageSize, maxObjects = 100, 300_000
	// maxKept is the maximum size of the names and selectors that are kept of all objects of a kind, in bytes.
	maxKept = 8 << 20
)

// pageBounds returns the limits on a page of a list. They are larger than most single objects, because the smallest
// page has one object.
func pageBounds() untrusted.Bounds {
	return untrusted.Bounds{Bytes: 4 << 20, Nodes: 200_000, Depth: 64, Items: 2 * pageSize}
}

// Source is a cluster to read facts from.
type Source struct {
	// Client sends requests to the cluster.
	Client rest.Interface
	// Direct reports whether the client connects to the API server itself, and not through the hub. The certificate of
	// the connection is then the certificate of the API server.
	Direct bool
}

// Gather reads the facts. It returns an error if the API server cannot be reached or is not ready. Facts that cannot be
// read for another reason are listed in Unread.
func Gather(ctx context.Context, source Source, target *Target) (*Facts, error) {
	g := &gatherer{Source: source, target: target, facts: &Facts{At: time.Now()}}
	if err := g.version(ctx); err != nil {
		return nil, fmt.Errorf("read the version of the API server: %w", err)
	}
	g.try(ctx, []string{CheckNodesReady, CheckKubeletVersion}, "nodes", g.nodes)
	if target.Drain != nil {
		checks := []string{CheckNodeCapacity}
		if !target.Drain.DisableEviction {
			checks = append(checks, CheckDisruptionBudgets)
			g.try(ctx, checks[1:], "poddisruptionbudgets", g.budgets)
		}
		g.try(ctx, checks, "pods", g.pods)
	}
	g.try(ctx, []string{CheckAdmissionWebhooks}, "admission webhooks", g.webhooks)
	g.try(ctx, []string{CheckRemovedAPIs}, pathMetrics, g.metrics)
	for _, r := range g.removed() {
		g.try(ctx, []string{CheckRemovedAPIs}, r.Resource, func(ctx context.Context) error { return g.applied(ctx, r) })
	}
	if source.Direct {
		g.try(ctx, []string{CheckCertificates}, objectServer, g.certificate)
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("read the state of the cluster: %w", ctx.Err())
	}
	return g.facts, nil
}

// gatherer reads facts.
type gatherer struct {
	Source
	target *Target
	facts  *Facts
	// nodeIndex holds the index of each node, and selectors the selectors of the budgets, by namespace.
	nodeIndex map[string]int
	selectors map[string][]budgetSelector
}

// try calls read. If read fails, try records that its checks are not complete.
func (g *gatherer) try(ctx context.Context, checks []string, object string, read func(context.Context) error) {
	err := read(ctx)
	if err == nil {
		return
	}
	for _, check := range checks {
		g.facts.Unread = append(g.facts.Unread, Unread{Check: check, Object: object,
			Cause: protocol.Cut(err.Error(), MaxText), Forbidden: apierrors.IsForbidden(err)})
	}
}

func (g *gatherer) version(ctx context.Context) error {
	info, err := read[apiversion.Info](ctx, g.Client.Get().AbsPath("/version").SetHeader("Accept", jsonType))
	if err != nil {
		return err
	}
	g.facts.Version = protocol.Cut(info.GitVersion, 128)
	return nil
}

// page is a page of a list.
type page[T any] struct {
	Metadata struct {
		Continue string `json:"continue"`
	} `json:"metadata"`
	Items []T `json:"items"`
}

// list reads the objects at a path, one page at a time. If a page exceeds the limits, list requests smaller pages.
func list[T any](ctx context.Context, g *gatherer, path, accept string, query map[string]string,
	do func(*T) error) error {
	next, size := "", pageSize
	for count := 0; count < maxObjects; {
		request := g.Client.Get().AbsPath(path).SetHeader("Accept", accept).Param("limit", strconv.Itoa(size))
		for key, value := range query {
			request = request.Param(key, value)
		}
		if next != "" {
			request = request.Param("continue", next)
		}
		one, err := read[page[T]](ctx, request)
		if errors.Is(err, untrusted.ErrTooLarge) && size > 1 {
			size /= 2
			continue
		}
		if err != nil {
			return err
		}
		count += max(len(one.Items), 1)
		for i := range one.Items {
			if err := do(&one.Items[i]); err != nil {
				return err
			}
		}
		if next = one.Metadata.Continue; next == "" {
			return nil
		}
	}
	return fmt.Errorf("there are more than %d objects", maxObjects)
}

// read sends a request and decodes the response.
func read[T any](ctx context.Context, request *rest.Request) (*T, error) {
	stream, err := request.Stream(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = stream.Close() }()
	one := new(T)
	return one, untrusted.ReadJSON(stream, one, pageBounds())
}

// nodes reads the nodes.
func (g *gatherer) nodes(ctx context.Context) error {
	g.nodeIndex = map[string]int{}
	return list(ctx, g, "/api/v1/nodes", jsonType, nil, func(n *corev1.Node) error {
		g.nodeIndex[n.Name] = len(g.facts.Nodes)
		g.facts.Nodes = append(g.facts.Nodes, nodeOf(n, g.target))
		return nil
	})
}

// nodeOf returns the facts about a node. It selects the same nodes as the planner.
func nodeOf(n *corev1.Node, target *Target) Node {
	os, excluded := n.Labels[corev1.LabelOSStable], n.Labels[v1.PlanLabel(target.Plan)] == v1.PlanDisabled
	linux := os == "" || os == string(corev1.Linux)
	is := Node{
		Name: n.Name, Unschedulable: n.Spec.Unschedulable, Kubelet: protocol.Cut(n.Status.NodeInfo.KubeletVersion, 128),
		Selected: linux && n.Labels[corev1.LabelHostname] != "" && !excluded && target.Nodes.Matches(labels.Set(n.Labels)),
		Excluded: excluded, OtherOS: !linux, Virtual: n.Labels["type"] == "virtual-kubelet",
		Allocatable: amountsOf(n.Status.Allocatable),
	}
	is.Allocatable.Pods = n.Status.Allocatable.Pods().Value()
	// A node that runs only etcd is upgraded together with the control plane.
	for _, role := range []string{"control-plane", "master", "etcd"} {
		_, found := n.Labels["node-role.kubernetes.io/"+role]
		is.ControlPlane = is.ControlPlane || found
	}
	for _, c := range n.Status.Conditions {
		is.Ready = is.Ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	for _, t := range n.Spec.Taints {
		if t.Effect != corev1.TaintEffectPreferNoSchedule && t.Key != corev1.TaintNodeUnschedulable {
			is.Taints = append(is.Taints, t.Key)
		}
	}
	slices.Sort(is.Taints)
	return is
}

func amountsOf(list corev1.ResourceList) Amounts {
	return Amounts{MilliCPU: list.Cpu().MilliValue(), Memory: list.Memory().Value()}
}

// certificate reads the validity of the API server's certificate.
func (g *gatherer) certificate(ctx context.Context) error {
	client, ok := g.Client.(*rest.RESTClient)
	if !ok || client.Client == nil {
		return errors.New("the client does not tell the server's certificate")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, client.Get().AbsPath("/version").URL().String(), nil)
	if err != nil {
		return err
	}
	response, err := client.Client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.TLS == nil || len(response.TLS.PeerCertificates) == 0 {
		return errors.New("the connection does not tell the server's certificate")
	}
	certificate := response.TLS.PeerCertificates[0]
	g.facts.CertificateIssued, g.facts.CertificateExpires = certificate.NotBefore, certificate.NotAfter
	return nil
}
