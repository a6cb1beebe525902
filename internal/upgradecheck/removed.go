// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	pathMetrics = "/metrics"
	// metricName is the API server's metric of the deprecated APIs that clients have requested.
	metricName = "apiserver_requested_deprecated_apis{"
	// maxMetrics is the maximum size of all metrics, in bytes, and maxLine the maximum size of a line to read.
	maxMetrics, maxLine = 256 << 20, 4 << 10
	// maxAPIs is the maximum number of deprecated APIs and of objects.
	maxAPIs = 1000
)

// removedResource is a resource in a version that Kubernetes removes.
type removedResource struct {
	API
	// kept is a version of the same resource that Kubernetes keeps.
	kept string
}

// removedResources returns the resources in beta versions that Kubernetes removes. TestTheTableOfRemovedAPIsIsComplete
// compares the list with the Kubernetes API.
func removedResources() []removedResource {
	var all []removedResource
	add := func(group, version, removed string, resources ...string) {
		for _, resource := range resources {
			all = append(all, removedResource{API{Group: group, Version: version, Resource: resource, Removed: removed}, "v1"})
		}
	}
	add("flowcontrol.apiserver.k8s.io", "v1beta3", "1.32", "flowschemas", "prioritylevelconfigurations")
	add("admissionregistration.k8s.io", "v1beta1", "1.34", "validatingadmissionpolicies",
		"validatingadmissionpolicybindings")
	add("networking.k8s.io", "v1beta1", "1.37", "ipaddresses", "servicecidrs")
	add("storage.k8s.io", "v1beta1", "1.37", "volumeattributesclasses")
	add("resource.k8s.io", "v1beta1", "1.38", "deviceclasses", "resourceclaims", "resourceclaimtemplates")
	add("resource.k8s.io", "v1beta2", "1.39", "deviceclasses", "resourceclaims", "resourceclaimtemplates")
	return all
}

// removed returns the resources that the API server may still serve in a version that the target does not serve.
func (g *gatherer) removed() []removedResource {
	server, known := minor(g.facts.Version)
	goal, _ := minor(g.target.Version)
	return slices.DeleteFunc(removedResources(), func(r removedResource) bool {
		return !r.removedBy(goal) || known && r.removedBy(server)
	})
}

// applied reads the objects of a resource that were last applied in a version that Kubernetes removes. The version in
// which API servers store objects does not matter, because they convert it.
func (g *gatherer) applied(ctx context.Context, r removedResource) error {
	path := "/apis/" + r.Group + "/" + r.kept + "/" + r.Resource
	err := list(ctx, g, path, metaType, nil, func(o *metav1.PartialObjectMetadata) error {
		manager := applier(o, r.Group+"/"+r.Version)
		if manager == "" {
			return nil
		}
		if len(g.facts.Applied) == maxAPIs {
			return fmt.Errorf("more than %d objects use removed APIs", maxAPIs)
		}
		g.facts.Applied = append(g.facts.Applied, AppliedObject{API: r.API, Manager: manager,
			Name: strings.TrimPrefix(o.Namespace+"/"+o.Name, "/")})
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil // the cluster does not serve this API
	}
	return err
}

// applier returns the field manager that last applied an object in the given version of its API, or "" if there is
// none. Updates do not count, because a manager that later updates other fields in a newer version keeps its old entry.
func applier(o *metav1.PartialObjectMetadata, version string) string {
	for _, m := range o.ManagedFields {
		if m.Operation == metav1.ManagedFieldsOperationApply && m.APIVersion == version {
			return protocol.Cut(m.Manager, 128)
		}
	}
	var last metav1.TypeMeta
	raw := o.Annotations[corev1.LastAppliedConfigAnnotation]
	if untrusted.JSON([]byte(raw), &last, untrusted.Large()) == nil && last.APIVersion == version {
		return "kubectl apply"
	}
	return ""
}

// metrics reads the deprecated APIs that clients have requested.
func (g *gatherer) metrics(ctx context.Context) error {
	stream, err := g.Client.Get().AbsPath(pathMetrics).SetHeader("Accept", "text/plain").Stream(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	g.facts.Requested, err = requestedAPIs(stream)
	return err
}

// requestedAPIs reads the deprecated APIs from the metrics of an API server. It reads one line at a time, because the
// metrics of a large cluster have many megabytes.
func requestedAPIs(metrics io.Reader) ([]API, error) {
	limited := &io.LimitedReader{R: metrics, N: maxMetrics}
	lines := bufio.NewReaderSize(limited, maxLine)
	var found []API
	for {
		line, partial, err := lines.ReadLine()
		switch {
		case errors.Is(err, io.EOF) && limited.N > 0:
			return found, nil
		case errors.Is(err, io.EOF):
			return found, fmt.Errorf("the metrics have more than %d bytes", maxMetrics)
		case err != nil:
			return found, err
		}
		text := ""
		if bytes.HasPrefix(line, []byte(metricName)) {
			text = string(line[len(metricName):])
		}
		for partial && err == nil { // other metrics can have long lines
			_, partial, err = lines.ReadLine()
		}
		if api, requested := parseAPI(text); requested {
			if len(found) == maxAPIs {
				return found, fmt.Errorf("there are more than %d deprecated APIs", maxAPIs)
			}
			found = append(found, api)
		}
	}
}

// parseAPI parses the labels and the value of the metric. Its labels contain no escaped characters.
func parseAPI(text string) (api API, requested bool) {
	list, value, ok := strings.Cut(text, "}")
	if !ok || strings.TrimSpace(value) == "0" {
		return API{}, false
	}
	for pair := range strings.SplitSeq(list, ",") {
		name, quoted, _ := strings.Cut(pair, "=")
		content := strings.Trim(quoted, `"`)
		switch name {
		case "group":
			api.Group = content
		case "version":
			api.Version = content
		case "resource":
			api.Resource = content
		case "subresource":
			api.Subresource = content
		case "removed_release":
			api.Removed = content
		}
	}
	return api, true
}
