// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func secretOf(namespace, name, project string) corev1.Secret {
	return corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{LabelSecretProject: project, LabelSecretCluster: "c-1"}}, Data: map[string][]byte{"k": []byte("v")}}
}

func TestSecretsOfProjects(t *testing.T) {
	secret := secretOf
	serviceAccount := secret("c-1-p-a", "registry", "p-a")
	serviceAccount.Type = corev1.SecretTypeServiceAccountToken
	dying := secret("c-1-p-a", "registry", "p-a")
	dying.DeletionTimestamp = &metav1.Time{}
	younger := secret("c-1-p-b", "registry", "p-b")
	younger.CreationTimestamp = metav1.Unix(1, 0)
	tests := map[string]struct {
		secrets  []corev1.Secret
		want     string // the projects of exported Secrets
		reported string
	}{
		"one of a project":                              {[]corev1.Secret{secret("c-1-p-a", "registry", "p-a")}, "one-a", ""},
		"one whose label names another project":         {[]corev1.Secret{secret("c-1-p-b", "registry", "p-a")}, "", "not in the namespace of the project"},
		"one in a namespace of no project":              {[]corev1.Secret{secret("default", "registry", "p-a")}, "", "not in the namespace of the project"},
		"one of a project that does not exist":          {[]corev1.Secret{secret("c-1-p-z", "registry", "p-z")}, "", "not in the namespace of the project"},
		"two of a name: the older one":                  {[]corev1.Secret{younger, secret("c-1-p-a", "registry", "p-a")}, "one-a", "Another project has a Secret of this name"},
		"one of a type that is never copied":            {[]corev1.Secret{serviceAccount}, "", "never copies Secrets of this type"},
		"one that is being deleted":                     {[]corev1.Secret{dying}, "", "is deleting it"},
		"one that would be an agent's":                  {[]corev1.Secret{secret("c-1-p-a", "one-agent", "p-a")}, "", "use names like this in a workspace"},
		"one that would be a cluster's registration":    {[]corev1.Secret{secret("c-1-p-a", "one-registration", "p-a")}, "", "use names like this in a workspace"},
		"one that would be a session":                   {[]corev1.Secret{secret("c-1-p-a", "drover-session-x", "p-a")}, "", "use names like this in a workspace"},
		"one whose file would be that of the folder":    {[]corev1.Secret{secret("c-1-p-a", "kustomization", "p-a")}, "one-a", ""},
		"one whose name is too long for that of a file": {[]corev1.Secret{secret("c-1-p-a", strings.Repeat("x", 253), "p-a")}, "one-a", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			in := Objects{Clusters: []Cluster{{ObjectMeta: metav1.ObjectMeta{Name: "c-1"}}}, Secrets: tt.secrets}
			in.Clusters[0].Spec.DisplayName = "one"
			for _, p := range []string{"a", "b"} {
				in.Projects = append(in.Projects, Project{ObjectMeta: metav1.ObjectMeta{Namespace: "c-1", Name: "p-" + p}})
				in.Projects[len(in.Projects)-1].Spec.DisplayName = p
			}
			for _, values := range []bool{true, false} {
				r := Convert(in, Options{Workspace: "team-a", SecretValues: values})
				if _, err := r.Files(); err != nil {
					t.Fatal(err)
				}
				got := ""
				for _, o := range r.Secrets {
					exported, ok := o.Object.(*corev1.Secret)
					if !ok || string(exported.Data["k"]) != "v" {
						t.Errorf("exported %+v", o.Object)
						continue
					}
					got += exported.Labels["cluster.drover.dev/project"]
				}
				if want := map[bool]string{true: tt.want}[values]; got != want {
					t.Errorf("values %t: exported for %q, want %q", values, got, want)
				}
				reported := ""
				for _, f := range r.Report.Findings {
					reported += f.Reason + "\n"
				}
				if !strings.Contains(reported, tt.reported) || !values && tt.want != "" && !strings.Contains(reported, "The Secret of a project is not exported") {
					t.Errorf("values %t: reported %q, want %q", values, reported, tt.reported)
				}
			}
		})
	}
}
