// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestRequestedAPIsAreReadFromMetrics(t *testing.T) {
	line := func(group, version, resource, subresource, removed string, value int) string {
		return fmt.Sprintf("apiserver_requested_deprecated_apis{group=%q,removed_release=%q,resource=%q,subresource=%q,"+
			"version=%q} %d\n", group, removed, resource, subresource, version, value)
	}
	const group = "flowcontrol.apiserver.k8s.io"
	metrics := "# HELP apiserver_requested_deprecated_apis [STABLE] Gauge of deprecated APIs that have been requested.\n" +
		"# TYPE apiserver_requested_deprecated_apis gauge\n" +
		line("", "v1", "endpoints", "", "", 1) + line(group, "v1beta3", "flowschemas", "status", "1.32", 1) +
		line("old", "v1beta1", "unused", "", "1.33", 0) +
		`long{a="` + strings.Repeat("x", 3*maxLine) + "\"} 1\n" +
		"apiserver_requested_deprecated_apis_other{group=\"other\"} 1\n" +
		`apiserver_requested_deprecated_apis{group="broken`
	want := []API{
		{Resource: "endpoints", Version: "v1"},
		{Group: group, Version: "v1beta3", Resource: "flowschemas", Subresource: "status", Removed: "1.32"},
	}
	got, err := requestedAPIs(strings.NewReader(metrics))
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if name := got[1].String(); name != "flowschemas/status.v1beta3.flowcontrol.apiserver.k8s.io" {
		t.Errorf("its name is %s", name)
	}
	if name := got[0].String(); name != "endpoints.v1" {
		t.Errorf("the name of a core API is %s, want endpoints.v1", name)
	}
	many := strings.Repeat(line(group, "v1beta3", "flowschemas", "", "1.32", 1), maxAPIs+1)
	if got, err := requestedAPIs(strings.NewReader(many)); err == nil {
		t.Errorf("got %d APIs, want an error", len(got))
	}
}

// removal is implemented by the kinds in beta versions.
type removal interface {
	APILifecycleRemoved() (major, minor int)
}

func TestTheTableOfRemovedAPIsIsComplete(t *testing.T) {
	// These kinds are not stored, or only Kubernetes itself writes them.
	skipped := []string{"SelfSubjectReview", "APIGroupDiscovery", "LeaseCandidate", "ResourceSlice", "DeviceTaintRule"}
	const last = 39
	known := map[string]string{}
	for _, r := range removedResources() {
		known[r.Group+"/"+r.Version+" "+r.Resource] = r.Removed
	}
	found := 0
	for kind := range scheme.Scheme.AllKnownTypes() {
		object, err := scheme.Scheme.New(kind)
		if err != nil {
			t.Fatal(err)
		}
		of, ok := object.(removal)
		if !ok || strings.HasSuffix(kind.Kind, "List") || !strings.Contains(kind.Version, "beta") ||
			slices.Contains(skipped, kind.Kind) {
			continue
		}
		major, minor := of.APILifecycleRemoved()
		if major != 1 || minor <= 30 || minor > last {
			continue
		}
		plural, _ := meta.UnsafeGuessKindToResource(kind)
		key := kind.Group + "/" + kind.Version + " " + plural.Resource
		want := fmt.Sprintf("1.%d", minor)
		if known[key] != want {
			t.Errorf("the table has the release %q for %s, want %q", known[key], key, want)
		}
		delete(known, key)
		found++
	}
	if found == 0 || len(known) > 0 {
		t.Errorf("found %d kinds, and not %v: want all of the table", found, known)
	}
}

func TestManifestsWithRemovedAPIsAreFound(t *testing.T) {
	const version = "flowcontrol.apiserver.k8s.io/v1beta3"
	for name, tt := range map[string]struct {
		object metav1.PartialObjectMetadata
		want   string
	}{
		"applied by a field manager": {metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "flux", Operation: "Apply", APIVersion: version}}}}, "flux"},
		"applied in a newer version": {metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "flux", Operation: "Apply", APIVersion: "x/v1"}}}}, ""},
		"updated in the version": {metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "c", Operation: "Update", APIVersion: version}}}}, ""},
		"applied by kubectl": {metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			corev1.LastAppliedConfigAnnotation: `{"apiVersion":"` + version + `","kind":"FlowSchema"}`}}}, "kubectl apply"},
		"with an annotation that is not JSON": {metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Annotations: map[string]string{corev1.LastAppliedConfigAnnotation: version}}}, ""},
	} {
		if got := applier(&tt.object, version); got != tt.want {
			t.Errorf("%s: got the manager %q, want %q", name, got, tt.want)
		}
	}
}
