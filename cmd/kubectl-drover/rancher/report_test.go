// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// The report is read in terminals and rendered by Git servers. Names that users of Rancher chose must only appear as
// text.
func TestTheReportObeysNoName(t *testing.T) {
	r := Report{Workspace: "team-a"}
	r.find(Decide, "Decide.", "Project x (\x1b[2J\u202e`code` | [link](http://evil.example) <script>\n# Heading\n- item)", "\r\nmore\u2028")
	text := string(r.Markdown())
	want := "- `Project x (\\x1b[2J\\u202e'code' ¦ [link](http://evil.example) <script>\\n# Heading\\n- item)`: `\\r\\nmore\\u2028`\n"
	if !strings.Contains(text, want) {
		t.Errorf("%q is not in\n%s", want, text)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
		t.Errorf("control characters are in %q", text)
	}
}

func TestALongListIsCutInTheReport(t *testing.T) {
	r := Report{}
	for i := range 10000 {
		r.find(LeftOut, "The same.", fmt.Sprintf("Project %05d", i), "")
	}
	r.find(LeftOut, "Another.", "x", "")
	r.order()
	text := string(r.Markdown())
	if got := strings.Count(text, "- `"); got != shown+1 || !strings.Contains(text, "- and 9950 more\n") || !strings.Contains(text, "Another.\n\n- `x`\n") {
		t.Errorf("%d lines in\n%s", got, text)
	}
}

var safePath = regexp.MustCompile(`^([a-z0-9][a-z0-9-]*/)*([a-z0-9][a-z0-9-]*(\.secret)?\.yaml|REPORT\.md|\.gitignore)$`)

// FuzzNames has every name of Rancher be the same hostile one: files stay in their folders, and hold the one object that they are for (CVE-2026-44939).
func FuzzNames(f *testing.F) {
	for _, name := range []string{"web", "../../etc/passwd", "a\n---\nkind: ClusterRoleBinding\n", "\x1b[2J", "kustomization", "con", strings.Repeat("x", 300), "", "-", "#", "|\n x", "日本", "a\x00b", "\u2028"} {
		f.Add(name, name)
	}
	f.Fuzz(func(t *testing.T, name, display string) {
		in := Objects{
			Clusters: []Cluster{{ObjectMeta: metav1.ObjectMeta{Name: name}}, {ObjectMeta: metav1.ObjectMeta{Name: name + "2"}}},
			Projects: []Project{{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: name}}},
			RoleTemplates: []RoleTemplate{template(name, "cluster", func(rt *RoleTemplate) {
				rt.DisplayName, rt.External = display, true
			})},
			ClusterBindings: []ClusterBinding{{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: name}, ClusterName: name, RoleTemplateName: name, Subject: Subject{GroupPrincipalName: "genericoidc_group://ops"}}},
		}
		in.Clusters[0].Spec.DisplayName, in.Clusters[1].Spec.DisplayName, in.Projects[0].Spec.DisplayName = display, display, display
		r := Convert(in, Options{Workspace: "team-a", Clusters: []string{name, name + "2"}})
		files, err := r.Files()
		if err != nil {
			t.Fatal(err)
		}
		for file, text := range files {
			if !safePath.MatchString(file) || len(path.Base(file)) > 100 {
				t.Errorf("the file %q", file)
			}
			if strings.ContainsFunc(string(text), func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
				t.Errorf("control characters in %s: %q", file, text)
			}
		}
		for _, o := range r.Objects {
			var one struct {
				Kind     string
				Metadata metav1.ObjectMeta
			}
			if err := yaml.Unmarshal(files[o.Path], &one); err != nil || one.Kind != o.Object.GetObjectKind().GroupVersionKind().Kind || !dnsLabel.MatchString(one.Metadata.Name) {
				t.Errorf("%s is %+v, %v:\n%s", o.Path, one, err, files[o.Path])
			}
			if strings.Contains(string(files[o.Path]), "\n---") {
				t.Errorf("%s has two documents:\n%s", o.Path, files[o.Path])
			}
		}
	})
}
