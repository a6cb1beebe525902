// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tenancy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/set"
)

// SkippedSecret is a Secret that has a project's label but is not copied.
type SkippedSecret struct {
	// Name is the name of the Secret.
	Name string
	// Message explains why the Secret is not copied. It contains no data from the Secret.
	Message string
}

// Secrets returns the copies of a project's Secrets for each namespace of each of its members. It uses only the
// Secrets in the project's own workspace that have the project's label. Secrets for a project with the same name in
// another workspace are ignored.
//
// A copy has the name, type and data of its source. It also has the labels of its source, except the labels that tools
// on the hub use to mark their own objects. It has no annotations, because the annotation last-applied-configuration
// may contain the data. The copy is never immutable, even if its source is, because it has to be updated if the source
// is recreated.
func Secrets(p *v1.Project, secrets []corev1.Secret) (set.Content, []SkippedSecret, error) {
	per := &set.PerNamespace{Project: p.Name}
	var skipped []SkippedSecret
	ordered := slices.SortedFunc(slices.Values(secrets),
		func(a, b corev1.Secret) int { return cmp.Compare(a.Name, b.Name) })
	for i := range ordered {
		source := &ordered[i]
		if source.Namespace != p.Namespace || source.Labels[v1.LabelProject] != p.Name || source.DeletionTimestamp != nil {
			continue
		}
		if message := NeverCopied(source); message != "" {
			skipped = append(skipped, SkippedSecret{Name: source.Name, Message: message})
			continue
		}
		template, err := toTemplate(Copy(source), set.Labels(set.ID(set.Secrets, p.Name)))
		if err != nil {
			return set.Content{}, nil, fmt.Errorf("copy secret %s: %w", source.Name, err)
		}
		template.Except = exceptions(source)
		per.Templates = append(per.Templates, template)
	}
	return set.Content{PerNamespace: per}, skipped, nil
}

// NeverCopied returns the reason why a Secret must not be copied into a member. It returns "" if the Secret may be
// copied.
func NeverCopied(s *corev1.Secret) string {
	switch {
	case s.Labels[v1.LabelSecretKind] != "":
		return "it is Drover's own: it holds a credential of the hub"
	case s.Type == corev1.SecretTypeServiceAccountToken:
		return "a ServiceAccount's token is only valid in its own cluster, and a Secret of this type would create one in the member"
	case s.Type == corev1.SecretTypeBootstrapToken:
		return "a bootstrap token lets nodes join a cluster"
	case strings.HasPrefix(string(s.Type), "helm.sh/release."):
		return "it is Helm's record of a release: Helm would find a release in the member that was never installed there, and remove its objects"
	case strings.HasPrefix(string(s.Type), v1.Group+"/"):
		return fmt.Sprintf("type %s is for Drover's own use", s.Type)
	}
	return ""
}

// Copy returns the copy of a Secret for members. It has the name, type and data of the Secret. It also has the Secret's
// labels, except the labels that tools on the hub use to mark their own objects.
func Copy(s *corev1.Secret) *corev1.Secret {
	labels := map[string]string{}
	for key, value := range s.Labels {
		if !ClaimsOwnership(key) {
			labels[key] = value
		}
	}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: labels},
		Type:       s.Type,
		Data:       s.Data,
	}
}

// ClaimsOwnership reports whether a label marks an object as owned by a tool. Such a tool would remove an object that
// has the label but is unknown to the tool.
func ClaimsOwnership(key string) bool {
	if key == v1.LabelManagedBy || key == "app.kubernetes.io/instance" {
		return true
	}
	domain, _, _ := strings.Cut(key, "/")
	return slices.Contains([]string{v1.Group, "argocd.argoproj.io", "toolkit.fluxcd.io", "helm.sh",
		"helm.toolkit.fluxcd.io", "kustomize.toolkit.fluxcd.io"}, domain)
}

// exceptions returns the namespaces that an annotation of the source excludes from receiving a copy.
func exceptions(s *corev1.Secret) []string {
	var names []string
	for name := range strings.SplitSeq(s.Annotations[v1.AnnotationExceptNamespaces], ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
