// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/baseline"
)

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: web}\n"

func parse(text string) ([]json.RawMessage, error) {
	return baseline.Parse([]baseline.Source{{Name: "ConfigMap cni, key a.yaml", Text: []byte(text)}})
}

// names returns the kinds and names of objects.
func names(t *testing.T, objects []json.RawMessage) string {
	t.Helper()
	var all []string
	for _, raw := range objects {
		o, err := baseline.Decode(raw)
		if err != nil {
			t.Fatalf("decode %s: %v", raw, err)
		}
		all = append(all, o.GetKind()+" "+o.GetName())
	}
	return strings.Join(all, ", ")
}

func TestParseFindsTheObjectsOfAStream(t *testing.T) {
	const both = "ConfigMap one, ConfigMap two"
	one, two := fmt.Sprintf(configMap, "one"), fmt.Sprintf(configMap, "two")
	tests := map[string]struct{ text, want string }{
		"one document":                {one, "ConfigMap one"},
		"JSON":                        {`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"web"}}`, "Namespace web"},
		"two documents":               {one + "---\n" + two, both},
		"separators at both ends":     {"---\n" + one + "---\n" + two + "---\n", both},
		"a comment after a separator": {"--- # first\n" + one, "ConfigMap one"},
		"a document of comments":      {"# a licence\n---\n" + one, "ConfigMap one"},
		"the end of a document":       {one + "...\n---\n" + two, both},
		"Windows line ends":           {strings.ReplaceAll(one+"---\n"+two, "\n", "\r\n"), both},
		"dashes inside a text":        {one + "data:\n  a: |\n    ---\n    b: c\n", "ConfigMap one"},
		"a List":                      {"apiVersion: v1\nkind: List\nitems:\n- " + indent(one) + "- " + indent(two), both},
		"the same name in two groups": {gateway("a.io") + "---\n" + gateway("b.io"), "Gateway web, Gateway web"},
		"the same name in two namespaces": {one + "---\n" + strings.Replace(one, "namespace: web", "namespace: api", 1),
			"ConfigMap one, ConfigMap one"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			objects, err := parse(tt.text)
			if err != nil {
				t.Fatalf("got the error %v, want %s", err, tt.want)
			}
			if got := names(t, objects); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func indent(document string) string {
	return strings.TrimSuffix(strings.ReplaceAll(document, "\n", "\n  "), "  ")
}

func gateway(group string) string {
	return "apiVersion: " + group + "/v1\nkind: Gateway\nmetadata: {name: web, namespace: web}\n"
}

func TestParseRefusesWithoutQuotingTheText(t *testing.T) {
	one := fmt.Sprintf(configMap, "one")
	tests := map[string]struct{ text, want string }{
		"no object":                {"# nothing\n", "there is no object"},
		"not YAML":                 {"a: b: hunter2", "document 1: it is not YAML"},
		"a list":                   {"- hunter2", "document 1: read an object"},
		"no kind":                  {"apiVersion: v1\nmetadata: {name: hunter2}", "document 1: read an object"},
		"no name":                  {"apiVersion: v1\nkind: ConfigMap\nmetadata: {a: hunter2}", "it has no metadata.name"},
		"no metadata":              {"apiVersion: v1\nkind: ConfigMap\ndata: {a: hunter2}", "an object has no metadata"},
		"a path as name":           {strings.Replace(one, "one", "../one", 1), "a character that is not allowed"},
		"a query in an apiVersion": {strings.Replace(one, "v1", "v1?hunter2", 1), "a character that is not allowed"},
		"dots as a name":           {strings.Replace(one, "one", "..", 1), "a character that is not allowed"},
		"a dot as a namespace":     {strings.Replace(one, "namespace: web", "namespace: .", 1), "a character that is not"},
		"a path as an apiVersion": {strings.Replace(one, "v1", "../hunter2", 1),
			"a character that is not allowed"},
		"an empty group":  {strings.Replace(one, "v1", "/v1", 1), "a character that is not allowed"},
		"an anchor":       {one + "data: &a {b: hunter2}", "a YAML anchor or alias"},
		"an object twice": {one + "---\n" + one, "document 2: ConfigMap web/one: it is listed twice"},
		"an object in two versions": {gateway("a.io") + "---\n" + strings.Replace(gateway("a.io"), "/v1", "/v2", 1),
			"Gateway web/web: it is listed twice"},
		"the agent's namespace": {strings.Replace(one, "namespace: web", "namespace: drover-agent", 1), "belong to Drover"},
		"a namespace of Drover": {"apiVersion: v1\nkind: Namespace\nmetadata: {name: drover-plans}", "belong to Drover"},
		"the label of a set": {labelled("set"),
			"only Drover sets the label cluster.drover.dev/set"},
		"the label of a Baseline": {labelled("baseline"),
			"only Drover sets the label cluster.drover.dev/baseline"},
		"too many kinds":   {kinds(baseline.MaxKinds + 1), "at most 64 kinds"},
		"too many objects": {many(baseline.MaxObjects+1, ""), "at most 1000 objects"},
		"too many bytes":   {many(5, strings.Repeat("x", 900_000)), "at most 4194304 bytes"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parse(tt.text)
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("got %v, want an error with %q and without the text", err, tt.want)
			}
		})
	}
}

func labelled(key string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {cluster.drover.dev/" + key + ": hunter2}}"
}

func kinds(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, "apiVersion: a.io/v1\nkind: Kind%d\nmetadata: {name: a}\n---\n", i)
	}
	return out.String()
}

func many(n int, data string) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, configMap+"data: {a: '%s'}\n---\n", fmt.Sprint("c", i), data)
	}
	return out.String()
}

func TestManifestsThatEveryoneCanReadContainNoSecret(t *testing.T) {
	const secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: a, namespace: b}\nstringData: {password: hunter2}\n"
	for name, text := range map[string]string{
		"a Secret":           secret,
		"a Secret in a List": "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Secret, metadata: {name: a}}]\n",
		"a SecretList":       "apiVersion: v1\nkind: SecretList\nmetadata: {name: a}\n",
	} {
		if _, err := baseline.Parse([]baseline.Source{{Name: "public", Text: []byte(text), Public: true}}); err == nil ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want an error without the text", name, err)
		}
	}
	if _, err := baseline.Parse([]baseline.Source{{Name: "private", Text: []byte(secret)}}); err != nil {
		t.Errorf("got %v for a Secret in a Secret, want no error", err)
	}
}

func TestObjectsWithLongNamesAreDifferent(t *testing.T) {
	long := strings.Repeat("x", 250)
	object := func(last string) string {
		return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + long + last + ", namespace: default}\n---\n"
	}
	if objects, err := parse(object("a") + object("b")); err != nil || len(objects) != 2 {
		t.Errorf("got %d objects and %v, want 2", len(objects), err)
	}
}

func TestARevisionDependsOnlyOnTheContent(t *testing.T) {
	revision := func(role, text string) string {
		t.Helper()
		objects, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		return baseline.Revision(role, objects)
	}
	one := "apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {b: c, d: e}}\n"
	same := []string{
		"# a comment\n" + one,
		"kind: Namespace\nmetadata:\n  labels: {d: e, b: c}\n  name: a\napiVersion: v1\n",
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: a, labels: {b: c, d: e}, uid: x, resourceVersion: '7', " +
			"creationTimestamp: null}\nstatus: {phase: Active}\n",
	}
	want := revision("edit", one)
	for _, text := range same {
		if got := revision("edit", text); got != want {
			t.Errorf("got revision %s of\n%s\nwant %s, because the object is the same", got, text, want)
		}
	}
	for role, text := range map[string]string{"view": one, "edit": strings.Replace(one, "c", "f", 1)} {
		if got := revision(role, text); got == want {
			t.Errorf("got revision %s with role template %s of\n%s\nwant another", got, role, text)
		}
	}
}

func TestStagesPutDefinitionsFirstAndWebhooksLast(t *testing.T) {
	text := `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: last}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: middle, namespace: web}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: first.a.io}
---
apiVersion: a.io/v1
kind: Namespace
metadata: {name: middle-too}
---
apiVersion: v1
kind: Namespace
metadata: {name: first}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: last.a.io}
`
	raw, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	var stages [baseline.StageCount][]string
	for _, r := range raw {
		o, err := baseline.Decode(r)
		if err != nil {
			t.Fatal(err)
		}
		at := baseline.Stage(o.GetAPIVersion(), o.GetKind())
		stages[at] = append(stages[at], o.GetName())
	}
	var got []string
	for _, names := range stages {
		got = append(got, strings.Join(names, " "))
	}
	if want := "first.a.io first | middle middle-too | last last.a.io"; strings.Join(got, " | ") != want {
		t.Errorf("got the stages %s, want %s", strings.Join(got, " | "), want)
	}
}

func TestOnlyTheUserOfABaselineIsOne(t *testing.T) {
	for name, want := range map[string]bool{
		baseline.User("cni"): true, "drover:viewer": false, "github:alice": false, "drover:baseline": false,
	} {
		if got := baseline.IsUser(name); got != want {
			t.Errorf("got %t for %q, want %t", got, name, want)
		}
	}
}
