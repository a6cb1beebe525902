// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"regexp"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
)

// minorVersion matches, for example, the "v1.36" in "v1.36.3+k3s1".
var minorVersion = regexp.MustCompile(`^v\d{1,4}\.\d{1,4}`)

// writeFacts writes the facts from the agent's report to the status. If the member is lost, the status keeps the last
// facts.
func writeFacts(in *input) {
	s := &in.cluster.Status
	if in.identity != nil {
		s.ClusterUID = in.identity.ClusterUID
	}
	if !in.member.Connected() {
		if seen := in.member.LastSeen; !seen.IsZero() {
			s.LastSeen = &metav1.Time{Time: seen.Truncate(1e9)}
		}
		if s.Agent != nil {
			s.Agent.Replicas = 0
		}
		return
	}
	s.LastSeen = nil
	report := in.member.Report
	if report == nil {
		return
	}
	agent := in.agent()
	agent.Version, agent.Replicas = report.AgentVersion, int32(in.member.Agents())
	switch {
	case !in.cluster.Spec.AuthorizedEndpoint.On() || in.cluster.Spec.AuthorizedEndpoint.TLSSecretName != "":
		s.DirectAuthority = ""
	case isAuthority(report.DirectAuthority): // kubeconfigs will contain this certificate
		s.DirectAuthority = report.DirectAuthority
	}
	if report.Version != "" {
		s.Version = report.Version
	}
	if report.Distribution != "" { // only the replica that watches the nodes knows their number
		s.Distribution = report.Distribution
	}
	if n := report.Nodes; n != nil {
		s.Nodes = &v1.NodeCount{Total: n.Total, Ready: n.Ready, Summary: fmt.Sprintf("%d/%d", n.Ready, n.Total)}
		s.Capacity = quantities(n.Capacity)
		s.Allocatable = quantities(n.Allocatable)
		s.Requested = quantities(n.Requested)
	}
}

// isAuthority reports whether text is exactly one PEM-encoded CA certificate.
func isAuthority(text string) bool {
	block, rest := pem.Decode([]byte(text))
	if block == nil || block.Type != "CERTIFICATE" || len(block.Headers) > 0 || len(rest) > 0 || string(pem.EncodeToMemory(block)) != text {
		return false
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	return err == nil && certificate.IsCA
}

// factLabels returns the facts about a member as labels, so that users can select Clusters by these facts. It omits
// facts that are not valid label values.
func factLabels(in *input) map[string]string {
	labels, report := map[string]string{}, in.member.Report
	if report == nil {
		report = &protocol.Report{}
	}
	for key, fact := range map[string][2]string{
		v1.LabelDistribution: {report.Distribution, report.Distribution},
		v1.LabelVersion:      {report.Version, minorVersion.FindString(report.Version)},
	} {
		value, had := in.cluster.Labels[key]
		if fact[0] == "" && had {
			labels[key] = value // the current value is unknown, but an apply request without the label would remove it
		} else if fact[1] != "" && len(validation.IsValidLabelValue(fact[1])) == 0 {
			labels[key] = fact[1]
		}
	}
	return labels
}

// applyMetadata applies Drover's labels and finalizers. It does not change other labels and finalizers.
func (r *Reconciler) applyMetadata(ctx context.Context, cluster *v1.Cluster, labels map[string]string, finalizers []string) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(v1.GroupVersion.WithKind("Cluster"))
	object.SetNamespace(cluster.Namespace)
	object.SetName(cluster.Name)
	object.SetUID(cluster.UID) // prevents the apply request from recreating a deleted Cluster
	object.SetLabels(maps.Clone(labels))
	object.SetFinalizers(finalizers)
	want := client.ApplyConfigurationFromUnstructured(object)
	if err := r.Client.Apply(ctx, want, owned.FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply labels and finalizer of cluster %s/%s: %w", cluster.Namespace, cluster.Name, err)
	}
	written := &v1.Cluster{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, written); err != nil {
		return fmt.Errorf("read cluster %s/%s as it was written: %w", cluster.Namespace, cluster.Name, err)
	}
	r.written.Note(written)
	return nil
}

// quantities drops invalid quantities. protocol.Report.Bound has already limited the size of the report.
func quantities(raw map[string]string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, value := range raw {
		if q, err := resource.ParseQuantity(value); err == nil {
			list[corev1.ResourceName(name)] = q
		}
	}
	return list
}
