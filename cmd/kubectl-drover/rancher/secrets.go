// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"path"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// secrets exports the projects' Secrets if their values were requested. Otherwise, it only reports the Secrets.
func (c *conversion) secrets() {
	if c.in.SecretsForbidden {
		c.report.find(Unreadable, "You may not list Secrets. Without --with-secrets, Secrets of projects are not exported, "+
			"and the report cannot name them.", "secrets", "")
	}
	owner := map[string]string{} // project of each copied Secret, by the Secret's name
	for _, s := range oldestFirst(c.in.Secrets, func(s corev1.Secret) metav1.ObjectMeta { return s.ObjectMeta }) {
		what := describe("Secret", s.ObjectMeta, "")
		p, id := project{}, s.Labels[LabelSecretCluster]+":"+s.Labels[LabelSecretProject]
		owners := c.ownersOf(s)
		if len(owners) == 1 {
			p = owners[0]
		}
		switch {
		case len(owners) > 1: // CVE-2024-22031
			c.report.find(Decide, "Projects of several clusters share its namespace. It is not exported: decide which project "+
				"it belongs to.", what, id)
			continue
		case p.name == "":
			if !c.other[id] {
				c.report.find(LeftOut, "It is not in the namespace of the project in its label, so Rancher does not copy it "+
					"either.", what, id)
			}
			continue
		case c.deleted(what, s.ObjectMeta):
			continue
		case s.Type == corev1.SecretTypeServiceAccountToken || s.Type == corev1.SecretTypeBootstrapToken:
			c.report.find(LeftOut, "Drover never copies Secrets of this type.", what, string(s.Type))
			continue
		case strings.HasPrefix(s.Name, "drover-") || strings.HasSuffix(s.Name, v1.RegistrationSecretSuffix) || strings.HasSuffix(s.Name, v1.AgentSecretSuffix):
			c.report.find(Decide, "Drover's own Secrets use names like this in a workspace. It is not exported: use another "+
				"name, also in the pods that use it.", what, p.name)
			continue
		case owner[s.Name] != "":
			c.report.find(Decide, "Another project has a Secret of this name, and names are unique in a workspace. It is not "+
				"exported: use another name, or put the projects into two workspaces.", what, p.name+" and "+owner[s.Name])
			continue
		}
		owner[s.Name] = p.name
		if !c.SecretValues {
			c.report.find(Decide, "The Secret of a project is not exported, because it has values. Create it in the workspace with the label cluster.drover.dev/project, for example from your own secret store, or export with --with-secrets.",
				what, v1.LabelProject+": "+p.name)
			continue
		}
		c.hidden = append(c.hidden, Output{Path: path.Join(SecretsFolder, bounded(s.Name)+".secret.yaml"), Origin: what, Object: c.convertSecret(s, p.name)})
	}
}

// ownersOf returns the projects that Rancher copies a Secret to. Old projects with the same name in two clusters share
// a namespace. In that case, it might not be clear which of the projects the Secret belongs to.
func (c *conversion) ownersOf(s corev1.Secret) []project {
	var owners []project
	for _, p := range c.inside {
		in := s.Namespace != "" && (s.Namespace == p.Namespace+"-"+p.Name || s.Namespace == p.Status.BackingNamespace)
		of := s.Labels[LabelSecretCluster]
		if in && p.Name == s.Labels[LabelSecretProject] && (of == "" || of == p.cluster.Name) {
			owners = append(owners, p)
		}
	}
	return owners
}

func (c *conversion) convertSecret(s corev1.Secret, projectName string) *corev1.Secret {
	out := &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: c.meta(s.Name), Type: s.Type, Data: s.Data}
	out.Labels = map[string]string{v1.LabelProject: projectName}
	if except := strings.Join(strings.FieldsFunc(s.Annotations[AnnotationIgnoreNamespaces], func(r rune) bool { return r == ',' || r == ' ' }), ","); except != "" {
		out.Annotations = map[string]string{v1.AnnotationExceptNamespaces: except}
	}
	return out
}
